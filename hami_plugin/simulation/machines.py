"""The machines that can be simulated: packaged profiles, those of vendors, and profiles in files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from hami_plugin.errors import ConfigError
from hami_plugin.host.bounded_yaml import read_yaml
from hami_plugin.model.machine import Machine, machine

_SUFFIX = ".yaml"


def machine_names() -> tuple[str, ...]:
    """The names of all profiles, sorted."""
    return tuple(sorted(_profiles()))


def load_machine(name_or_path: str | Path) -> Machine:
    """Read a profile by its name, or any profile by its path. ``ConfigError`` says what is wrong with it.

    An unambiguous suffix of a name is enough: ``trn2-48xlarge``.
    """
    text = _completed(str(name_or_path))
    is_path = isinstance(name_or_path, Path) or "/" in text or text.endswith((_SUFFIX, ".yml"))
    if not is_path and text not in machine_names():
        raise ConfigError([_unknown(text)])
    source = Path(text) if is_path else _profiles()[text]
    try:
        description = read_yaml(source.read_text(encoding="utf-8"))
        if not isinstance(description, Mapping):
            raise TypeError("a profile is a mapping with devices in it")  # noqa: TRY301  # one message for all of them
        return _numbered(machine(description))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError([f"machine profile {text}: {error}"]) from error


def _numbered(found: Machine) -> Machine:
    """Check that the devices' indices are their rows in the tables of levels and links. ValueError if not."""
    numbers, places = [device.index for device in found.devices], list(range(len(found.devices)))
    if numbers != places:
        expected, actual = (", ".join(map(str, some)) for some in (places, numbers))
        raise ValueError(f"index of the devices must be {expected} in this order, is {actual}")
    return found


def _completed(text: str) -> str:
    longer = [name for name in machine_names() if name.endswith(f"-{text}")]
    return longer[0] if len(longer) == 1 and text not in machine_names() else text


def _profiles() -> Mapping[str, Traversable]:
    """The packaged profiles, and those in vendors' directories ``profiles``; a packaged name cannot be replaced."""
    folders: list[Traversable] = [
        *(found for place in import_module("vendors").__path__ for found in Path(place).glob("*/profiles")),
        resources.files("hami_plugin.simulation") / "profiles",
    ]
    files = (file for folder in folders for file in folder.iterdir() if file.name.endswith(_SUFFIX))
    return {file.name.removesuffix(_SUFFIX): file for file in files}


def _unknown(name: str) -> str:
    folded = name.casefold()
    near = [known for known in machine_names() if folded in known][:3]
    near = near or difflib.get_close_matches(folded, machine_names(), n=3, cutoff=0.4)
    remedy = f"did you mean {', '.join(near)}?" if near else f"choose from: {', '.join(machine_names())}"
    return f"no machine profile is named {name!r}; {remedy} (or give the path of a YAML file)"
