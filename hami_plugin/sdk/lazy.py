"""Functions that are imported when they are called: listing vendors must not load all that a node or a test needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def deferred(name: str) -> Callable[..., Any]:
    """The function of such a dotted name, as ``vendors.acme.simulation.simulate``."""

    def called(*arguments: Any, **named: Any) -> Any:
        module, _, function = name.rpartition(".")
        return getattr(importlib.import_module(module), function)(*arguments, **named)

    return called
