"""What the chart has to know of the code: names of resources, and annotations that are ours alone."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from hami_plugin.cli import main
from hami_plugin.protocol import keys
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
    """files/options.yaml: every option of the daemon's command."""
    names = {name for option in main.commands["run"].params for name in option.opts if name.startswith("-")}
    return "# Made from the command: make manifests\n" + yaml.safe_dump({"run": sorted(names)})


def annotations() -> str:
    """files/annotations.yaml: what is reserved on pods and on nodes. Vendors' own keys are not ours to reserve."""
    pods = {keys.ASSIGNED_NODE, keys.ASSIGNED_TIME, keys.BIND_PHASE, keys.BIND_TIME}
    nodes = {keys.NODE_LOCK, keys.BIND_LOCK}
    for family in families():
        pods |= {family.annotations.allocated, family.annotations.to_allocate}
        nodes |= {family.annotations.register, family.annotations.handshake, family.annotations.score}
    chosen = {
        "nodes": sorted(key for key in nodes if key.startswith(OURS)),
        "pods": sorted(key for key in pods if key.startswith(OURS)),
    }
    return HEAD + yaml.safe_dump(chosen)
