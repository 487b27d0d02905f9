"""Whether one NPU may be offered, by asking the NPU itself."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from hami_plugin.model.device import Fault
from vendors.ascend.node.codes import DcmiError
from vendors.ascend.node.dcmi import Dcmi, Unit

SILENT: Final = "NpuSilent"
_ALARMS = {1: "NpuMinorAlarm", 2: "NpuMajorAlarm", 3: "NpuCriticalAlarm"}


def examine(dcmi: Dcmi, unit: Unit, *, shared: bool) -> Fault | None:
    """What is wrong at present; the driver itself says when an alarm is over.

    ``shared``: containers of hami-core mode are to open the NPU together.
    """
    try:
        grade = dcmi.health(unit)
    except DcmiError as error:
        return silent(error)
    if not grade:
        return _alone(dcmi, unit) if shared else None
    message = f"the driver's health grade is {grade}; its error codes: {_codes(dcmi, unit)}"
    return Fault(reason=_ALARMS.get(grade, "NpuNotStarted"), message=message)


def silent(error: DcmiError) -> Fault:
    return Fault(reason=SILENT, message=str(error))


def _codes(dcmi: Dcmi, unit: Unit) -> str:
    try:
        return ", ".join(f"{code:#010x}" for code in dcmi.errors(unit)) or "none"
    except DcmiError as error:
        return f"unknown ({error})"


def _alone(dcmi: Dcmi, unit: Unit) -> Fault | None:
    """The driver may forbid that several containers open an NPU. Old drivers do not tell."""
    with suppress(DcmiError):
        if not dcmi.shareable(unit):
            remedy = f"npu-smi set -t device-share -i {unit.card} -c {unit.chip} -d 1"
            return Fault(reason="NpuNotShareable", message=f"only one container may open it; run {remedy}")
    return None
