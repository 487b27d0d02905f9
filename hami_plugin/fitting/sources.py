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
from hami_plugin.inventory.inventory import part
from hami_plugin.model.device import Device
from hami_plugin.model.machine import Machine
from hami_plugin.model.views import NodeView
from hami_plugin.node_status.annotations import Style, wanted_annotations
from hami_plugin.sdk import Family, load_vendor
from hami_plugin.simulation.hardware import vendor_of
from hami_plugin.simulation.machines import load_machine
from hami_plugin.startup import Plan, opened, plan

NOBODY = {"config": None, "device_config": None, "node_config": None, "nvml_library": None, "simulation_dir": None}
INSTANCE_TYPE = "node.kubernetes.io/instance-type"


def inquiry(options: Mapping[str, Any], environment: Mapping[str, str]) -> Inquiry:
    """Read everything that the command's options name."""
    if sum(bool(options[name]) for name in ("node", "simulate", "profile")) != 1:
        raise HamiError("fit needs a node", hint="give one of --node FILE, --profile NAME and --simulate NAME")
    pod = manifests.the_pod(options["pod"])
    nodes, families = _nodes(options, environment)
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


def _nodes(
    options: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[tuple[NodeView, ...], tuple[Family, ...]]:
    """The nodes to ask about, and the families by whose rules they have devices."""
    known = {**NOBODY, **options}
    if options["node"]:
        return manifests.nodes(options["node"]), _families(_planned(known, "", environment, "this-node"))
    machines = options["simulate"] or options["profile"]
    loaded = [load_machine(name.strip()) for name in machines.split(",") if name.strip()]
    name = "-".join(machine.name for machine in loaded)
    untold = [machine for machine in loaded if vendor_of(machine).simulate is None]
    if untold and len(loaded) == 1 and options["profile"]:
        ready = _planned(known, "", environment, name)
        return (NodeView(name=name),), _described(ready, loaded[0])
    ready = _planned(known, machines, environment, name)
    return (simulated(ready, loaded),), _families(ready)


def _planned(options: Mapping[str, Any], simulate: str, environment: Mapping[str, str], node: str) -> Plan:
    return plan({**options, "simulate": simulate}, {"NODE_NAME": node, **environment})


def _described(ready: Plan, machine: Machine) -> tuple[Family, ...]:
    """All families; those of a vendor that no daemon of ours serves with a profile's devices, on whatever node."""
    vendor = vendor_of(machine)

    def there(family: Family) -> Family:
        infos = vendor.facts.described(family, machine)
        return replace(family, rules=replace(family.rules, node_devices=lambda _node: infos))

    own = vendor.families(ready.configuration.vendors[vendor.name])
    words = {family.word for family in own}
    return (*map(there, own), *(family for family in _families(ready) if family.word not in words))


def simulated(ready: Plan, machines: Sequence[Machine]) -> NodeView:
    """The node as the daemon and the kubelet would describe it on the simulated machines: by the daemon's own code."""
    annotations: dict[str, str] = {}
    capacity: dict[str, str] = {}
    for served in opened(ready, HostPaths(prepared=True)):
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
    kinds = [str(one.extra["instance_type"]) for one in machines if "instance_type" in one.extra]
    return NodeView(
        name=ready.configuration.settings.node_name,
        labels={INSTANCE_TYPE: kinds[0]} if kinds else {},
        annotations=annotations,
        capacity=capacity,
    )


def _counted(family: Family, devices: Sequence[Device]) -> Mapping[str, str]:
    """What the kubelet would count of a family's devices."""
    kinds = {
        family.resources.count: family.node.replicas,
        **{one.resource: one.of_device for one in family.resources.units},
    }
    return {resource: str(sum(map(count, devices))) for resource, count in kinds.items()}


def _families(ready: Plan) -> tuple[Family, ...]:
    return tuple(
        family
        for name, settings in ready.configuration.vendors.items()
        for family in load_vendor(name).families(settings)
    )
