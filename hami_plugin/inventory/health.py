"""When a device is unwell, and when it is well again: healthy, suspect, unhealthy, probation, healthy.

A fault that asks for a reset or more is believed at once; a milder one that a look finds gets a second look first.
Recovery needs a hold (doubled with each relapse within an hour), then clean looks in a row. After a fault that asks for
a reboot, clean looks alone prove nothing: the device must have been seen broken and back again, or the driver reloaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hami_plugin.model.device import Action, Fault, Health

RELAPSE_WINDOW_S = 3600.0
NEVER = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """How fast a fault is believed, and how slowly a recovery. Times in seconds."""

    suspect_looks: int = 2
    clean_looks: int = 3
    hold: float = 10.0
    hold_cap: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One device's state. ``since`` and ``recovered`` are monotonic seconds; ``broken``: a look has failed since."""

    health: Health = Health.HEALTHY
    fault: Fault | None = None
    since: float = 0.0
    looks: int = 0
    broken: bool = False
    relapses: int = 0
    recovered: float = NEVER


WELL = Condition()


def after_event(condition: Condition, fault: Fault, now: float, *, confirmed: bool = False) -> Condition:
    """A fault that the driver reported by itself: believed at once, unless it asks to be ignored.

    ``confirmed``: the driver asked the device and it failed, which counts as a failed look.
    """
    if fault.action is Action.IGNORE:
        return condition
    return _unhealthy(condition, fault, now, broken=confirmed)


def after_look(condition: Condition, fault: Fault | None, now: float, limits: HealthLimits) -> Condition:
    """One look at the device: ``fault`` is what it found, None when all was well."""
    if fault is None or fault.action is Action.IGNORE:
        return _clean(condition, now, limits)
    if condition.health in (Health.UNHEALTHY, Health.PROBATION) or _grave(fault):
        return _unhealthy(condition, fault, now, broken=True)
    failed = condition.looks + 1 if condition.health is Health.SUSPECT else 1
    if failed >= limits.suspect_looks:
        return _unhealthy(condition, fault, now, broken=True)
    since = condition.since if condition.health is Health.SUSPECT else now
    return replace(condition, health=Health.SUSPECT, fault=fault, since=since, looks=failed)


def after_reload(condition: Condition) -> Condition:
    """The driver was reloaded, or the machine rebooted: what was broken may be whole."""
    return condition if condition.health is Health.HEALTHY else replace(condition, broken=True)


def min_unhealthy_s(condition: Condition, limits: HealthLimits) -> float:
    """Seconds for which the device stays unhealthy at least."""
    return min(limits.hold_cap, limits.hold * 2.0 ** min(condition.relapses, 16))


def outlook(condition: Condition, now: float, limits: HealthLimits) -> str:
    """When the device is well again, as far as can be said, after the words "it heals"; empty when it is."""
    match condition.health:
        case Health.HEALTHY:
            return ""
        case Health.SUSPECT:
            return "with the next clean look; one more failed one takes it out of service"
        case _:
            left = max(0.0, min_unhealthy_s(condition, limits) - (now - condition.since))
            looks = max(1, limits.clean_looks - condition.looks)
            remaining = (_needs(condition, now, limits), f"in {left:.0f} s at the earliest" if left >= 1 else "")
            parts = [part for part in remaining if part]
            end = f"{'then ' if parts else ''}after {looks} clean look{'' if looks == 1 else 's'} in a row"
            return ", ".join((*parts, end))


def _needs(condition: Condition, now: float, limits: HealthLimits) -> str:
    """What must happen before looks count."""
    if _may_recover(condition, now, limits):
        return ""
    if condition.fault and condition.fault.action is Action.REBOOT:
        return "once it was lost and is back, the driver was reloaded, or the machine rebooted"
    left = limits.hold_cap - (now - condition.since)
    return f"once it was reset, or in {left:.0f} s"


def _grave(fault: Fault) -> bool:
    return fault.action in (Action.RESET, Action.REBOOT)


def _unhealthy(condition: Condition, fault: Fault, now: float, *, broken: bool) -> Condition:
    if condition.health in (Health.HEALTHY, Health.SUSPECT):
        relapse = now - condition.recovered < RELAPSE_WINDOW_S
        relapses = condition.relapses + 1 if relapse else 0
        return Condition(
            health=Health.UNHEALTHY,
            fault=fault,
            since=now,
            broken=broken,
            relapses=relapses,
            recovered=condition.recovered,
        )
    # Already unwell: the gravest fault decides what a recovery needs, and clean looks start over.
    actions = list(Action)
    known = condition.fault
    gravest = fault if known is None or actions.index(fault.action) >= actions.index(known.action) else known
    return replace(condition, health=Health.UNHEALTHY, fault=gravest, looks=0, broken=condition.broken or broken)


def _clean(condition: Condition, now: float, limits: HealthLimits) -> Condition:
    if condition.health is Health.HEALTHY:
        return condition
    if condition.health is Health.SUSPECT:
        return replace(condition, health=Health.HEALTHY, fault=None, since=now, looks=0)
    if now - condition.since < min_unhealthy_s(condition, limits) or not _may_recover(condition, now, limits):
        return condition
    looks = condition.looks + 1
    if looks < limits.clean_looks:
        return replace(condition, health=Health.PROBATION, looks=looks)
    return Condition(since=now, relapses=condition.relapses, recovered=now)


def _may_recover(condition: Condition, now: float, limits: HealthLimits) -> bool:
    match condition.fault.action if condition.fault else Action.DRAIN:
        case Action.REBOOT:
            return condition.broken
        case Action.RESET:
            return condition.broken or now - condition.since >= limits.hold_cap
        case _:
            return True
