"""What is said and tidied once at the start, before the first device is offered. Nothing here stops the daemon."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from cdi.errors import CdiError
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles
from hami_plugin.log import logger
from hami_plugin.node.events import EventRecorder
from hami_plugin.node.guarding import Guard
from hami_plugin.node.spec_files import tidy
from hami_plugin.startup import Served
from hami_plugin.vendor import Family

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


async def look_at_host(families: Iterable[tuple[Guard, Family]], host: HostFiles, events: EventRecorder) -> None:
    """Say what containers will miss. Nothing is refused for it: the runtime tries again until it is there."""
    for guard, family in families:
        if family.unlimited:
            log.warning("parts are not limited", resource=family.resources.count, what=family.unlimited)
        try:
            problem = await guard.ask("host problem", partial(family.host_problem, host))
        except HamiError as error:
            problem = str(error)
        if problem:
            log.warning("host not prepared", resource=family.resources.count, problem=problem)
            events.node("HostNotPrepared", problem)


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
