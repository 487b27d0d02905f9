"""Devices as labels of a node can describe them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from hami_plugin.model.device import Device

MAX_VALUE = 63


def label_value(text: str) -> str:
    """``text`` as the value of a label can be: ``A100-SXM4-40GB`` of ``A100 (SXM4) 40GB``."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text)[:MAX_VALUE].strip("-_.")


def described(name: str, devices: Iterable[Device]) -> dict[str, str]:
    """``<name>.product``, ``.count`` and ``.memory`` of devices. Where they differ, those of the commonest model."""
    found = list(devices)
    if not found:
        return {}
    ((model, _number),) = Counter(device.model for device in found).most_common(1)
    memory = next(device.memory for device in found if device.model == model)
    return {f"{name}.product": label_value(model), f"{name}.count": str(len(found)), f"{name}.memory": str(memory)}
