"""What the chart has to know of the code: names of resources, and annotations that are ours alone."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from hami_plugin.cli import main
from hami_plugin.protocol import keys
from hami_plugin.protocol.pods import RESIZE_GRANTED, RESIZE_REFUSED
from hami_plugin.sdk import Family, load_vendor, vendor_names

HEAD = "# Made from the vendors' families: make manifests\n"
OURS = "hami.io/"


def families() -> Iterator[Family]:
    for name in vendor_names():
        vendor = load_vendor(name)
        yield from vendor.families(vendor.settings())


def resources() -> str:
    """files/resources.yaml: every resource that a pod may ask for."""
    names = {name for family in families() for name in family.resources.names.values() if name}
    return HEAD + yaml.safe_dump(sorted(names))


def options() -> str:
    """files/options.yaml: every option of the daemon's command and of the scheduler's."""
    names = {
        command: sorted({name for option in main.commands[command].params for name in option.opts if name[0] == "-"})
        for command in ("run", "scheduler")
    }
    return "# Made from the commands: make manifests\n" + yaml.safe_dump(names)


CHOICES: tuple[dict[str, object], ...] = ({}, {"unlimitedShares": True}, {"serve": "shared"}, {"serve": "parts"})
"""Sections on which a fixed value may depend."""


def fixed() -> str:
    """files/fixed.yaml: the values that a vendor's section may have only as they are, with the reason."""
    vendors: dict[str, dict[str, object]] = {}
    for name in vendor_names():
        settings = load_vendor(name).settings
        for key, one in settings.fixed.items():
            if key not in settings.helm and key not in {f.alias for f in settings.model_fields.values()}:
                values = {str(value) for section in CHOICES if (value := one.value(section)) is not None}
                vendors.setdefault(name, {})[key] = {"served": one.served, "values": sorted(values)}
    return "# Made from the vendors' settings: make manifests\n" + yaml.safe_dump(vendors, width=120)


def counts() -> str:
    """files/counts.yaml: the resource that counts a vendor's devices, of vendors that have one."""
    found = {}
    for name in vendor_names():
        vendor = load_vendor(name)
        own = vendor.families(vendor.settings())
        if len(own) == 1:
            found[name] = own[0].resources.count
    return HEAD + yaml.safe_dump(found)


def annotations() -> str:
    """files/annotations.yaml: what is reserved on pods and on nodes. Vendors' own keys are not ours to reserve."""
    pods = {keys.ASSIGNED_NODE, keys.ASSIGNED_TIME, keys.BIND_PHASE, keys.BIND_TIME}
    nodes = {keys.NODE_LOCK, keys.BIND_LOCK}
    for family in families():
        pods |= {family.rules.annotations.allocated, family.rules.annotations.to_allocate}
        nodes |= family.rules.annotations.of_nodes
    ours = [RESIZE_GRANTED, RESIZE_REFUSED]
    chosen = {
        "nodes": sorted(key for key in nodes if key.startswith(OURS)),
        "pods": sorted([*ours, *(key for key in pods if key.startswith(OURS))]),
    }
    return HEAD + yaml.safe_dump(chosen)
