"""Whether one card may be offered, by asking the card itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hami_plugin.log import logger
from hami_plugin.model.device import Action, Fault
from vendors.nvidia.binding import NvmlError
from vendors.nvidia.library import Handle, Nvml

_T = TypeVar("_T")

EXCLUSIVE_PROCESS = 3
_EXCLUSIVE, _PROHIBITED = (1, EXCLUSIVE_PROCESS), 2

log = logger(__name__)

# Field 230 of NVML: what the driver asks for. A number that is not here drains the card.
RECOVERY = {
    1: ("a reset of the card", Action.RESET),
    2: ("a reboot of the node", Action.REBOOT),
    3: ("no more peer-to-peer work", Action.DRAIN),
    4: ("draining, then a reset of the card", Action.RESET),
    5: ("recovery of its IMEX domain", Action.DRAIN),
    6: ("a reset of its bus", Action.RESET),
    7: ("a reboot of the system", Action.REBOOT),
}


def examine(nvml: Nvml, handle: Handle, *, shared: bool) -> Fault | None:
    """Ask everything that has a say; the first fault wins. What a card does not know, or may not tell, is no fault.

    ``shared``: several containers are to use the card at a time.
    """
    checks: tuple[Callable[[], Fault | None], ...] = (
        lambda: _recovery(_known(lambda: nvml.recovery_action(handle), 0)),
        lambda: _rows(*_known(lambda: nvml.remapped_rows(handle), (False, False))),
        lambda: _pages(_known(lambda: nvml.retired_pages_pending(handle), False)),
        lambda: _compute_mode(_known(lambda: nvml.compute_mode(handle), 0), shared=shared),
        lambda: _mig(_known(lambda: nvml.mig_enabled(handle), False)),
    )
    return next((fault for check in checks if (fault := check())), None)


def make_exclusive(nvml: Nvml, handle: Handle) -> Fault | None:
    """Have one process at a time use the card, and say why not where the driver will not have it so.

    The mode lasts until the driver is unloaded, or somebody sets another; so this is asked at each look.
    """
    if _known(lambda: nvml.compute_mode(handle), 0) == EXCLUSIVE_PROCESS:
        return None
    try:
        nvml.set_compute_mode(handle, EXCLUSIVE_PROCESS)
    except NvmlError as error:
        if error.no_permission:
            remedy = "give the daemon CAP_SYS_ADMIN, or run nvidia-smi -c EXCLUSIVE_PROCESS on the node"
        elif error.unsupported:
            remedy = "leave computeMode at Default for this node, or leave the card out with filterDevices"
        else:
            raise
        return Fault(reason="ComputeModeNotSet", message=f"the card cannot be made exclusive: {error}; {remedy}")
    log.info("compute mode set", mode="ExclusiveProcess", card=nvml.uuid(handle))
    return None


def _known(ask: Callable[[], _T], default: _T) -> _T:
    try:
        return ask()
    except NvmlError as error:
        if error.unsupported or error.no_permission:
            return default
        raise


def _recovery(number: int) -> Fault | None:
    if number == 0:
        return None
    wish, action = RECOVERY.get(number, (f"recovery action {number}", Action.DRAIN))
    return Fault(reason="RecoveryAction", message=f"the driver asks for {wish}", action=action)


def _rows(pending: bool, failed: bool) -> Fault | None:
    if failed:
        return Fault(reason="RowRemapFailed", message="a bad memory row could not be replaced", action=Action.RESET)
    if pending:
        return Fault(
            reason="RowRemapPending", message="bad memory rows are replaced at the next reset", action=Action.RESET
        )
    return None


def _pages(pending: bool) -> Fault | None:
    if not pending:
        return None
    return Fault(
        reason="PageRetirementPending", message="bad memory pages are retired at the next reset", action=Action.RESET
    )


def _compute_mode(mode: int, *, shared: bool) -> Fault | None:
    remedy = "switch it back with nvidia-smi -c DEFAULT"
    if mode == _PROHIBITED:
        return Fault(reason="ProhibitedComputeMode", message=f"compute mode prohibits all work; {remedy}")
    if mode in _EXCLUSIVE and shared:
        return Fault(
            reason="ExclusiveComputeMode",
            message=f"compute mode allows one process, so the card cannot be shared; {remedy},"
            " or set deviceSplitCount to 1",
        )
    return None


def _mig(enabled: bool) -> Fault | None:
    if not enabled:
        return None
    return Fault(
        reason="MigEnabled",
        message="the card is in MIG mode, where it cannot be used whole; switch MIG off with nvidia-smi -mig 0,"
        " or leave the card out with filterDevices",
    )
