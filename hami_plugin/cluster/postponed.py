"""Packages whose own module runs only once somebody asks for something in it; what lies below them is imported at once.

Importing any part of a package runs the package's ``__init__`` first, and that of ``kubernetes`` imports the client
that we do not use, with all that it stands on: 7 MiB in every daemon.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

from hami_plugin.errors import HamiError


class _Postponed(ModuleType):
    """A package with its path, and nothing in it yet. The first look for anything else runs its own module."""

    def __getattr__(self, name: str) -> Any:
        super().__setattr__("__class__", ModuleType)  # from here on a module like any other
        spec = self.__spec__
        if spec and spec.loader:
            spec.loader.exec_module(self)
        return getattr(self, name)


def postpone(*packages: str) -> None:
    """Import ``packages`` without running their own modules, outermost first. One that is there already is left."""
    for name in packages:
        if name in sys.modules:
            continue
        spec = find_spec(name)
        if spec is None:
            raise HamiError(f"the package {name} is not installed", hint="install what pyproject.toml asks for")
        module = module_from_spec(spec)
        module.__class__ = _Postponed
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
