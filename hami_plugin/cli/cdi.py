"""``hami-plugin cdi``: inspect CDI specs, of this machine, of a simulated one, or of files, as a runtime sees them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdi.documents import write
from cdi.registry import Registry, SpecFile, registry
from cdi.spec import Spec
from cdi.store import read_directories
from hami_plugin.cli.options import configuration_options, warnings_only
from hami_plugin.cli.snapshot import snapshot_of
from hami_plugin.daemon.startup import Options, open_drivers, plan
from hami_plugin.errors import DriverUnavailableError, HamiError
from hami_plugin.host.bounded_yaml import read_yaml
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.inventory.cdi_specs import describe, file_name
from hami_plugin.sdk import Family

if TYPE_CHECKING:
    from cdi.registry import Registry


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


def runtime_view(directories: Sequence[Path], specs: Sequence[FamilySpec] = ()) -> Registry:
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


directory_option = click.option(
    "--dir",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="A spec directory; the last has the highest priority. Not with --simulate, whose specs are in no "
    "directory.  [default: the configuration's cdiDirs, which are /etc/cdi and /var/run/cdi]",
)


@click.group(
    epilog="Try it without hardware: hami-plugin cdi list --simulate dgx-h100. Exit statuses: 0 success, 1 "
    "a problem was found, 2 invalid command or configuration. It needs neither a daemon nor a "
    "cluster."
)
def cdi() -> None:
    """Container Device Interface: inspect specs, and what a container would receive.

    A runtime resolves the CDI name of a device, such as example.com/gpu=0, in spec files. `generate` prints the specs
    that the daemon writes, `list` the names that a runtime finds and those it refuses, `validate` the problems of a
    file, and `resolve` what a container receives for a name.
    """


@cdi.command(
    short_help="Print this machine's specs, as the daemon writes them.",
    epilog="Example: hami-plugin cdi generate --simulate dgx-h100 --format yaml",
)
@configuration_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "yaml"]),
    default="json",
    show_default=True,
    help="Format of the spec.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write each spec into this directory, under the name that the daemon uses. It is created if it is missing. "
    "The daemon writes JSON; a second spec in YAML beside it would conflict.",
)
@click.option("--explain", is_flag=True, help="Also print, on standard error, where the driver's files were searched.")
def generate(form: str, output: Path | None, explain: bool, **options: Any) -> None:
    """Print this machine's devices as the daemon would describe them: one spec for each device type.

    The exit status is 1 if a device had to be left out; the reason is on standard error.
    """
    specs = _described(options)
    for one in specs:
        text = one.text(f".{form}")
        if output is None:
            click.echo(text, nl=False)
            continue
        path = output / Path(one.file).with_suffix(f".{form}").name
        _store(path, text)
        click.echo(f"{path}: {len(one.spec.devices)} names of kind {one.spec.kind}")
    for one in specs:
        for line in (*(one.explained() if explain else ()), *one.problems):
            click.echo(line, err=True)
    sys.exit(any(one.problems for one in specs))


@cdi.command(
    "list",
    short_help="Print the names that a runtime finds, and where.",
    epilog="Example: hami-plugin cdi list --dir /var/run/cdi",
)
@configuration_options
@directory_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_devices(directories: Sequence[Path], as_json: bool, **options: Any) -> None:
    """Print the names that a runtime would find, each with its file.

    The exit status is 1 for invalid or conflicting files: runtimes refuse a name that two files of a directory define.
    A later directory overrides an earlier one; if one of the two specs is ours, the daemon still reports the device as
    CDIConflict.
    """
    found = _view(directories, options)
    conflicts = {str(name): files for name, files in found.conflicts.items()}
    problems = [str(problem) for problem in found.problems]
    files = {str(name): found.files(name) for name in found.names}
    if as_json:
        devices = {name: of_name[-1] for name, of_name in files.items()}
        outranked = {name: of_name[:-1] for name, of_name in files.items() if of_name[1:]}
        answer = {"devices": devices, "outranked": outranked, "conflicts": conflicts, "problems": problems}
        click.echo(json.dumps(answer, indent=2))
    else:
        for name, (*others, file) in files.items():
            click.echo(f"{name}  {file}" + (f"  (overrides {' and '.join(others)})" if others else ""))
        for name, of_name in conflicts.items():
            click.echo(f"{name} is defined by {' and '.join(of_name)}; a runtime accepts neither; remove one", err=True)
        for problem in problems:
            click.echo(problem, err=True)
    sys.exit(bool(conflicts or problems))


@cdi.command(
    short_help="Print what a runtime would refuse in files.", epilog="Example: hami-plugin cdi validate /etc/cdi/*.yaml"
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True))
def validate(files: Sequence[Path]) -> None:
    """Print everything in FILES that a runtime would refuse, or that no container starts with.

    Each problem has its file, device and field; the exit status is 1 if there is any. Each file is checked alone;
    `hami-plugin cdi list` checks them together.
    """
    from cdi.documents import read, to_json  # noqa: PLC0415
    from cdi.errors import InvalidSpecError  # noqa: PLC0415
    from hami_plugin.host.bounded_yaml import read_yaml  # noqa: PLC0415

    bad = 0
    for file in files:
        try:
            spec = read(file.read_text(encoding="utf-8"), str(file), yaml=read_yaml)
            to_json(spec, str(file))  # refuses what runtimes read, but start no container with
        except InvalidSpecError as error:
            bad += 1
            for problem in error.problems:
                click.echo(str(problem), err=True)
        except UnicodeDecodeError as error:
            bad += 1
            click.echo(f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}", err=True)
        else:
            click.echo(f"{file}: valid, {len(spec.devices)} names of kind {spec.kind}")
    sys.exit(bool(bad))


@cdi.command(
    short_help="Print what a container receives for names.",
    epilog="Example: hami-plugin cdi resolve 0 --simulate dgx-h100",
)
@click.argument("names", nargs=-1, required=True)
@configuration_options
@directory_option
def resolve(names: Sequence[str], directories: Sequence[Path], **options: Any) -> None:
    """Print what a container that asks for NAMES receives from the runtime.

    A name is vendor/class=device, as `hami-plugin cdi list` prints it; the device alone is enough if only one kind has
    it. If a name does not resolve, nothing is printed and the exit status is 1: no container would start.
    """
    from cdi.documents import plain_edits, yaml_text  # noqa: PLC0415
    from cdi.errors import UnresolvableError  # noqa: PLC0415

    found = _view(directories, options)
    try:
        edits = found.resolve([full_name(name, found) for name in names])
    except UnresolvableError as error:
        reasons = "; ".join(f"{name} does not resolve: {reason}" for name, reason in error.reasons.items())
        raise HamiError(reasons, hint=f"`{_list_command(directories, options)}` prints the names that do") from error
    click.echo(yaml_text(plain_edits(edits)), nl=False)


def _list_command(directories: Sequence[Path], options: dict[str, Any]) -> str:
    """The ``list`` command for the same specs."""
    simulated = [f"--simulate {options['simulate']}"] if options["simulate"] else []
    return " ".join(["hami-plugin cdi list", *simulated, *(f"--dir {directory}" for directory in directories)])


def _described(options: dict[str, Any]) -> list[FamilySpec]:

    with warnings_only():
        return list(family_specs(options, os.environ))


def _view(directories: Sequence[Path], options: dict[str, Any]) -> Registry:
    """The specs of a simulated machine if one is named, else of directories. A missing directory is reported."""
    if options["simulate"]:
        if directories:
            raise click.UsageError(
                "--dir and --simulate exclude each other: the specs of a simulated machine are in no directory"
            )
        return runtime_view((), _described(options))
    searched = directories or configured_directories(options, os.environ)
    for directory in searched:
        if not directory.exists():
            click.echo(f"{directory} does not exist; runtimes find nothing in it", err=True)
    return runtime_view(searched)


def _store(path: Path, text: str) -> None:
    from cdi.errors import StoreError  # noqa: PLC0415
    from cdi.store import Store  # noqa: PLC0415

    try:
        Store(path.parent, path.name.split(".")[0]).write(path.name, text)
    except StoreError as error:
        raise HamiError(error.message, hint=error.hint) from error
