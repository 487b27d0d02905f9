"""What is said and tidied once at the start, before the first device is offered. Nothing here stops the daemon."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cdi.errors import CdiError
from hami_plugin.inventory.cdi_specs import tidy
from hami_plugin.log import logger
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.sdk import Family
from hami_plugin.startup import Served

log = logger(__name__)


def tell_handover(vendors: Iterable[Served], events: EventRecorder) -> None:
    """Say by which ways containers receive devices, and where the runtime would ignore those that were configured."""
    for served in vendors:
        handover, name = served.handover, served.vendor.name
        if handover is None:
            continue
        log.info("devices are handed over", vendor=name, by=", ".join(handover.ways), why=handover.why)
        if handover.ignored:
            log.warning("the runtime ignores cdi names", vendor=name, why=handover.ignored)
            events.node("CDISwitchedOff", handover.ignored)


def tell_unlimited(families: Iterable[Family]) -> None:
    """Say what containers with a part of a device are not held to, whatever the host has."""
    for family in families:
        if family.node.unlimited:
            log.warning("parts are not limited", resource=family.resources.count, what=family.node.unlimited)


def tidy_specs(directory: Path, kinds: Sequence[str]) -> None:
    """Remove our specs of other kinds. Without ``kinds`` they stay: containers that restart need their names."""
    if not kinds:
        return
    try:
        removed = tidy(directory, kinds).removed
    except CdiError as error:
        log.warning("cdi directory not tidied", directory=str(directory), why=str(error))
    else:
        if removed:
            log.info("cdi specs removed", directory=str(directory), files=removed)
