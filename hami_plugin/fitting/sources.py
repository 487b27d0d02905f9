"""Where an inquiry comes from: manifests, saved objects, or a simulated machine in place of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami_plugin.errors import HamiError
from hami_plugin.fitting import manifests
from hami_plugin.fitting.inquiry import Inquiry
from hami_plugin.glance import snapshot_of
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.machine import Machine
from hami_plugin.model.views import NodeView
from hami_plugin.node.annotating import Style, wanted_annotations
from hami_plugin.node.parts import part
from hami_plugin.simulation.hardware import vendor_of
from hami_plugin.simulation.machines import load_machine
from hami_plugin.startup import Plan, opened, plan
from hami_plugin.vendor import Family, Vendor, as_described, load_vendor

NOBODY = {"config": None, "node_config": None, "nvml_library": None, "simulation_dir": None}


def inquiry(options: Mapping[str, Any], environment: Mapping[str, str]) -> Inquiry:
    """Read everything that the command's options name."""
    if sum(bool(options[name]) for name in ("node", "simulate", "profile")) != 1:
        raise HamiError("fit needs a node", hint="give one of --node FILE, --profile NAME and --simulate NAME")
    named = {"NODE_NAME": "this-node", **environment}
    ready = plan({**NOBODY, **options}, named)
    pod = manifests.the_pod(options["pod"])
    nodes, families = _nodes(ready, options)
    quotas = manifests.quotas(options["quota"]) if options["quota"] else ()
    return Inquiry(
        pod=pod,
        nodes=nodes,
        families=families,
        pods=manifests.pods(options["pods"]) if options["pods"] else (),
        hard={name: text for one in quotas if one.namespace == pod.namespace for name, text in one.limits.items()},
        order=options["gpu_scheduler_policy"],
        node_order=options["node_scheduler_policy"],
    )


def _nodes(ready: Plan, options: Mapping[str, Any]) -> tuple[tuple[NodeView, ...], tuple[Family, ...]]:
    """The nodes to ask about, and the families by whose rules they have devices."""
    if options["node"]:
        return manifests.nodes(options["node"]), _families(ready)
    if options["simulate"]:
        return (simulated(ready, options["simulate"]),), _families(ready)
    machine = load_machine(options["profile"])
    vendor = vendor_of(machine)
    if vendor.simulate and vendor.facts.described is as_described:  # then its own driver knows best what it registers
        driven = plan({**NOBODY, **options, "simulate": options["profile"]}, {"NODE_NAME": "this-node"})
        return (simulated(driven, machine.name),), _families(driven)
    families = vendor.families(ready.configuration.vendors[vendor.name])
    return (NodeView(name=machine.name),), tuple(_described(vendor, family, machine) for family in families)


def _described(vendor: Vendor, family: Family, machine: Machine) -> Family:
    """The family, with a profile's devices on whatever node."""
    infos = vendor.facts.described(family, machine)
    return replace(family, node_devices=lambda _node: infos)


def simulated(ready: Plan, name: str) -> NodeView:
    """The node as the daemon and the kubelet would describe it on the simulated machine."""
    annotations: dict[str, str] = {}
    capacity: dict[str, str] = {}
    for served in opened(ready, HostPaths()):
        try:
            snapshot = snapshot_of(served.driver)
        finally:
            served.driver.close()
        families = served.vendor.families(served.settings)
        for family in families:
            own = part(snapshot, family.word) if len(families) > 1 else snapshot
            wanted = wanted_annotations(family, own, Style())
            annotations |= {key: text for key, text in wanted.items() if text is not None}
            capacity |= _counted(family, own.devices)
    return NodeView(name=name, annotations=annotations, capacity=capacity)


def _counted(family: Family, devices: Sequence[Device]) -> Mapping[str, str]:
    """What the kubelet would count of a family's devices."""
    kinds = {family.resources.count: family.replicas, **{one.resource: one.of_device for one in family.units}}
    return {resource: str(sum(map(count, devices))) for resource, count in kinds.items()}


def _families(ready: Plan) -> tuple[Family, ...]:
    return tuple(
        family
        for name, settings in ready.configuration.vendors.items()
        for family in load_vendor(name).families(settings)
    )
