"""Nodes of any age: HAMi 2.7's agents register their devices in a text of their own."""

from __future__ import annotations

from dataclasses import replace

from hami_plugin.model.views import NodeView
from hami_plugin.protocol.register import DeviceInfo, decode_legacy
from hami_plugin.vendor import Family


def of_any_age(family: Family) -> Family:
    """The family for a scheduler that also reads HAMi 2.7's register, where the family has no format of its own."""
    key = family.annotations.register
    if not key or family.node.encode:
        return family

    def devices(node: NodeView) -> tuple[DeviceInfo, ...]:
        text = node.annotations.get(key, "")
        return decode_legacy(text) if text and not text.startswith("[") else family.rules.node_devices(node)

    return replace(family, rules=replace(family.rules, node_devices=devices))
