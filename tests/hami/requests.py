"""What HAMi reads out of a container's resources, worked out anew from its documented rules.

Nothing of the code under test is used, so that a fault in it is no fault here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import yaml

from tests.hami.parity import Json, amount

Found = tuple[int, int, int, int] | None
"""Devices, memory, percentage and cores; None if nothing is asked for."""

MOST = 2**31 - 1
NAMES: Mapping[str, tuple[str, str, str]] = {
    "NVIDIA": ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"),
    "MLU": ("cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"),
    "DCU": ("hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"),
    "Mthreads": ("mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"),
    "Metax-GPU": ("metax-tech.com/gpu", "", ""),
    "Metax-SGPU": ("metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore"),
    "AMD": ("amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores"),
    "GCU": ("enflame.com/gcu", "", ""),
    "Enflame": ("enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"),
    "kunlun": ("kunlunxin.com/xpu", "", ""),
    "XPU": ("kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory", ""),
    "Vastai": ("vastaitech.com/va", "", ""),
    "Biren": ("birentech.com/gpu", "", ""),
    "AWSNeuron": ("aws.amazon.com/neuron", "", "aws.amazon.com/neuroncore"),
}
PERCENTAGE = "nvidia.com/gpumem-percentage"


def names(device_type: str) -> tuple[str, str, str]:
    """A vendor's resources: number, memory, cores."""
    if device_type.startswith("Ascend"):
        return f"huawei.com/{device_type}", f"huawei.com/{device_type}-memory", f"huawei.com/{device_type}-core"
    other = f"iluvatar.ai/{device_type}-vgpu", f"iluvatar.ai/{device_type}.vMem", f"iluvatar.ai/{device_type}.vCore"
    return NAMES.get(device_type, other)


def answer(question: Json) -> dict[str, Any]:
    device_type = question["vendor"]
    rule = _RULES.get(device_type, _ascend if device_type.startswith("Ascend") else _iluvatar)
    found = rule(Asked(question, *names(device_type)))
    if found is None:
        return {"request": {"nums": 0, "type": "", "memreq": 0, "mempercentagereq": 0, "coresreq": 0}}
    count, memory, percent, cores = (_wrapped(number) for number in found)
    return {
        "request": {
            "nums": count,
            "type": device_type,
            "memreq": memory,
            "mempercentagereq": percent,
            "coresreq": cores,
        }
    }


@dataclass(frozen=True)
class Asked:
    """A container's amounts."""

    question: Json
    count: str
    memory: str
    cores: str

    def text(self, name: str, *, limits_only: bool = False) -> str | None:
        container = self.question["container"]
        limit = (container.get("limits") or {}).get(name)
        return limit if limit is not None or limits_only else (container.get("requests") or {}).get(name)

    def whole(self, name: str, *, limits_only: bool = False) -> int | None:
        """None for what is not there, or no whole number."""
        text = self.text(name, limits_only=limits_only)
        number = None if text is None else quantity(text)
        return None if number is None or number % 1 or "." in (text or "") else int(number)

    def up(self, name: str) -> int | None:
        """Fractions are rounded up."""
        text = self.text(name)
        return None if text is None else ceil(quantity(text))

    def written(self, name: str) -> bool:
        return self.text(name) is not None


def quantity(text: str) -> Fraction:
    number = amount(text)
    if number is None:
        raise ValueError(f"{text!r} is no quantity")
    return number


def _wrapped(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def _nvidia(asked: Asked) -> Found:
    config = (yaml.safe_load(asked.question.get("config") or "") or {}).get("nvidia", {})
    factor = max(config.get("memoryFactor", 1), 1)
    count, memory, cores = asked.whole(asked.count), asked.whole(asked.memory), asked.whole(asked.cores)
    if count is None:
        return None
    if asked.written(asked.memory) and (memory is None or not 0 <= memory <= MOST // factor):
        return None
    size = (memory or 0) * factor
    percent = asked.whole(PERCENTAGE)
    percent = 101 if percent is None or percent <= 0 else min(percent, 100)
    if percent == 101 and not size:
        size = config.get("defaultMemory", 0)
        percent = percent if size else 100
    return count, size, percent, config.get("defaultCores", 0) if cores is None else cores


def _in_units(asked: Asked, unit: int, most: int, cores: int) -> Found:
    """Cambricon and others whose memory is counted in units."""
    count, memory, own = asked.whole(asked.count), asked.whole(asked.memory), asked.whole(asked.cores)
    if count is None or (asked.written(asked.memory) and (memory is None or not 0 <= memory <= most)):
        return None
    return count, (memory or 0) * unit, 0 if memory else 100, cores if own is None else own


def _cambricon(asked: Asked) -> Found:
    return _in_units(asked, 256, 8388607, 100)


def _iluvatar(asked: Asked) -> Found:
    return _in_units(asked, 256, 8388607, 0)


def _mthreads(asked: Asked) -> Found:
    found = _in_units(asked, 512, 4194303, 0)
    if found is None or not 0 < found[0] <= MOST:
        return None
    count, memory, percent, cores = found
    return count, memory // count, percent, int(_wrapped(cores) / count)


def _hygon(asked: Asked) -> Found:
    count, memory, cores = asked.whole(asked.count), asked.whole(asked.memory) or 0, asked.whole(asked.cores)
    cores = 100 if cores is None else cores
    if count is None or not 0 < count <= MOST or not 0 <= memory <= MOST or not 0 <= cores <= MOST:
        return None
    return count, memory, 0 if memory else 100, cores


def _counted(memory: int, cores: int) -> Callable[[Asked], Found]:
    def found(asked: Asked) -> Found:
        count = asked.whole(asked.count)
        return None if count is None else (count, memory, 100, cores)

    return found


def _part(asked: Asked) -> Found:
    count, memory = asked.whole(asked.count), asked.whole(asked.memory)
    if count is None:
        return None
    if memory is None:
        return count, 98304, 100, 100
    size = next((size for size in (24576, 49152) if memory <= size), 98304)
    return count, size, 0, size * 100 // 98304


def _sgpu(asked: Asked) -> Found:
    count, cores = asked.whole(asked.count, limits_only=True), asked.whole(asked.cores, limits_only=True)
    text, number = asked.text(asked.memory, limits_only=True), asked.whole(asked.memory, limits_only=True)
    cores, size = 100 if cores is None else cores, 0
    if count is None or not 0 < count <= MOST or not 0 <= cores <= MOST:
        return None
    if text is not None and number is not None and number < 90 * 2**40:
        in_bytes = not text.lstrip("+-").isdecimal() or (number % 1000 == 0 and number)
        if not in_bytes and not 0 <= number <= 2097151:
            return None
        size = number // 2**20 if in_bytes else number * 1024
    return (count, size, 0 if size else 100, cores) if 0 <= size <= MOST else None


def _amd(asked: Asked) -> Found:
    count, memory, cores = (asked.whole(name, limits_only=True) for name in (asked.count, asked.memory, asked.cores))
    if count is None or not 0 < count <= MOST:
        return None
    if asked.text(asked.memory, limits_only=True) is not None and (memory is None or not 0 <= memory <= MOST):
        return None
    if asked.text(asked.cores, limits_only=True) is None:
        cores = 100
    return (count, memory or 0, 0, cores) if cores is not None and 1 <= cores <= 100 else None


def _drs(asked: Asked) -> Found:
    slices = asked.up(asked.count)
    whole = asked.whole(asked.count)
    if slices is not None and slices > 0 and whole is not None:
        return None if slices > MOST else (1, slices, 0, 0)
    memory, cores = asked.up(asked.memory), asked.up(asked.cores)
    if (memory is None and cores is None) or max(memory or 0, cores or 0) > MOST:
        return None
    return 1, memory or 0, -1, cores or 0


def _neuron(asked: Asked) -> Found:
    seen = asked.question.get("cores_per_neuron", 0)
    if asked.written(asked.count):
        count = asked.whole(asked.count)
        return None if count is None or not 0 < count <= MOST else (count, 0, 0, seen)
    cores, each = asked.whole(asked.cores), min(seen or 2, 2)
    if cores is None or not 0 < cores <= 2 * MOST:
        return None
    if cores <= each:
        return 1, 0, 0, cores
    return None if cores % each else (cores // each, 0, 0, each)


def _ascend(asked: Asked) -> Found:
    count, memory, cores = asked.whole(asked.count), asked.whole(asked.memory) or 0, asked.up(asked.cores) or 0
    if count is None or not 0 < count <= MOST or not 0 <= memory <= MOST or not 0 <= cores <= MOST:
        return None
    return count, memory, 0 if memory else 100, cores


_RULES: Mapping[str, Callable[[Asked], Found]] = {
    "NVIDIA": _nvidia,
    "MLU": _cambricon,
    "DCU": _hygon,
    "Mthreads": _mthreads,
    "Metax-GPU": _counted(0, 100),
    "Metax-SGPU": _sgpu,
    "AMD": _amd,
    "GCU": _counted(100, 100),
    "Enflame": _drs,
    "kunlun": _counted(0, 0),
    "XPU": _part,
    "Vastai": _counted(0, 0),
    "Biren": _counted(0, 0),
    "AWSNeuron": _neuron,
}
