"""The CDI specs of this machine or a simulated one, and the view of a runtime over spec directories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdi.documents import write
from cdi.registry import Registry, SpecFile, registry
from cdi.spec import Spec
from cdi.store import read_directories
from hami_plugin.cli.snapshot import snapshot_of
from hami_plugin.daemon.startup import Options, open_drivers, plan
from hami_plugin.errors import DriverUnavailableError, HamiError
from hami_plugin.host.bounded_yaml import read_yaml
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.inventory.cdi_specs import describe, file_name
from hami_plugin.sdk import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec:
    """One family's spec, under the file name that the daemon would use. ``problems`` are the devices left out, with
    reasons.
    """

    family: Family
    file: str
    spec: Spec
    problems: tuple[str, ...]
    host: HostFiles

    def explained(self) -> Sequence[str]:
        """Where the vendor searched for the driver's files, and what it found."""
        return self.family.node.explain(self.host)

    def text(self, extension: str = ".json") -> str:
        """The spec's text in the format of this extension."""
        return write(self.spec, f"{Path(self.file).stem}{extension}")


def family_specs(options: Options, environment: Mapping[str, str]) -> Iterator[FamilySpec]:
    """A spec for each family with devices here. ``HamiError`` if there is none."""
    ready = plan(options, {"NODE_NAME": "this-node", **environment})
    paths = HostPaths(hook=ready.configuration.settings.hook_path, hook_view=ready.configuration.settings.hook_path)
    problems: list[str] = []
    found = 0
    host = HostFiles(paths=paths)
    for served in open_drivers(ready, paths):
        try:
            devices = snapshot_of(served.driver).devices
        except DriverUnavailableError as error:
            problems.append(f"{served.vendor.title}: {error.reason}: {error}")
            continue
        finally:
            served.driver.close()
        families = served.vendor.families(served.settings)
        listed = {family.resources.device_type for family in families}
        for family in families:
            own = [d for d in devices if d.family == family.resources.device_type or d.family not in listed]
            spec, left_out = describe(family, own, host)
            if spec.devices:
                found += 1
                yield FamilySpec(family=family, file=file_name(str(spec.kind)), spec=spec, problems=left_out, host=host)
    if not found:
        raise HamiError(f"no devices to describe. {' '.join(problems)}".strip(), hint="try --simulate dgx-h100")


def view(directories: Sequence[Path], specs: Sequence[FamilySpec] = ()) -> Registry:
    """The view of a runtime over ``directories``, or over ``specs`` alone if any are given."""
    files: Sequence[SpecFile] = (
        [SpecFile(path=one.file, priority=0, text=one.text()) for one in specs]
        if specs
        else read_directories(directories)
    )
    return registry(files, yaml=read_yaml)


def configured_directories(options: Options, environment: Mapping[str, str]) -> Sequence[Path]:
    """The daemon's spec directories; it writes its own into the last."""
    return plan(options, {"NODE_NAME": "this-node", **environment}).configuration.settings.cdi_dirs


def full_name(name: str, found: Registry) -> str:
    """``name`` with its kind. A device's name alone is enough if only one kind has it."""
    fitting = {str(one) for one in (*found.names, *found.conflicts) if one.device == name}
    return fitting.pop() if len(fitting) == 1 else name
