"""What is kept of faults is bounded, and what is told fits into an Event."""

from __future__ import annotations

from hami_plugin.allocation.identity import HeldShare
from hami_plugin.inventory.health import Condition, HealthLimits, outlook
from hami_plugin.model.device import Action, Device, Fault, Health
from hami_plugin.model.placement import Grant
from hami_plugin.node_status import faults
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.faults import FaultLog, fault_message

LIMITS = HealthLimits(hold=10, hold_cap=100, clean_looks=3)
FAULT = Fault(reason="Xid48", message="XID 48: double-bit error", action=Action.RESET)


class Nobody:
    async def create_event(self, *_arguments: object, **_more: object) -> None:
        raise AssertionError


def device(uuid: str) -> Device:
    return Device(uuid=uuid, family="F", index=0, model="M", memory=1)


def held(number: int, uuid: str) -> HeldShare:
    grant = Grant(uuid=uuid, device_type="F", memory=1, cores=1)
    return HeldShare(
        uid=f"u{number}",
        namespace="n",
        pod=f"p{number}",
        container="c",
        resource="r/r",
        ids=frozenset({f"{uuid}-{number}"}),
        grants=(grant,),
    )


def test_a_device_that_many_share_names_some_and_counts_the_rest() -> None:
    everybody = [held(number, "a" if number < 50 else "b") for number in range(60)]
    log = FaultLog(lambda: everybody, lambda _uid: None, EventRecorder(Nobody(), "n"))

    log.note("v", device("a"), FAULT, "soon")
    record = log.last["v", "a"]

    assert (len(record.holders), len(record.others)) == (50, 10)
    text = fault_message(record, "soon")
    assert "and 45 more" in text
    assert "10 other pods" in text
    assert len(text) < 1000


def test_what_is_kept_and_counted_is_bounded() -> None:
    log = FaultLog(tuple, lambda _uid: None, EventRecorder(Nobody(), "n"))

    for number in range(faults.MAX_COUNTED + 10):
        log.note("v", device(f"d{number}"), FAULT, "")

    assert len(log.last) == faults.MAX_RECORDS
    assert len(log.counts) == faults.MAX_COUNTED
    heir = FaultLog(tuple, lambda _uid: None, EventRecorder(Nobody(), "n"))
    heir.inherit(log)
    assert (heir.last, heir.counts) == (log.last, log.counts)


def test_the_outlook_says_what_must_happen_and_how_long_it_takes_at_least() -> None:
    def unwell(action: Action, **changes: object) -> Condition:
        fault = Fault(reason="X", action=action)
        return Condition(health=Health.UNHEALTHY, fault=fault, since=100.0, **changes)  # type: ignore[arg-type]  # names

    assert outlook(Condition(), 100.0, LIMITS) == ""
    assert "one more failed one" in outlook(Condition(health=Health.SUSPECT), 100.0, LIMITS)
    assert outlook(unwell(Action.DRAIN), 104.0, LIMITS) == "in 6 s at the earliest, then after 3 clean looks in a row"
    assert outlook(unwell(Action.DRAIN, looks=2), 200.0, LIMITS) == "after 1 clean look in a row"
    assert "0 s" not in outlook(unwell(Action.DRAIN), 109.9, LIMITS)
    assert "the machine rebooted" in outlook(unwell(Action.REBOOT), 1e6, LIMITS)
    assert "rebooted" not in outlook(unwell(Action.REBOOT, broken=True), 1e6, LIMITS)
    assert outlook(unwell(Action.RESET), 104.0, LIMITS).startswith("once it was reset, or in 96 s")
