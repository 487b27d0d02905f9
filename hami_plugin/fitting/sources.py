"""Where an inquiry comes from: manifests, saved objects, or a simulated machine in place of a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hami_plugin.errors import HamiError
from hami_plugin.fitting import manifests
from hami_plugin.fitting.inquiry import Inquiry
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.views import NodeView
from hami_plugin.node.registration import Style, wanted_annotations
from hami_plugin.startup import Plan, opened, plan, snapshot_of
from hami_plugin.vendor import Family, load_vendor

NOBODY = {"config": None, "node_config": None, "nvml_library": None, "simulation_dir": None}


def inquiry(options: Mapping[str, Any], environment: Mapping[str, str]) -> Inquiry:
    """Read everything that the command's options name."""
    if bool(options["node"]) == bool(options["simulate"]):
        raise HamiError("fit needs a node", hint="give either --node FILE or --simulate PROFILE")
    named = {"NODE_NAME": "this-node", **environment}
    ready = plan({**NOBODY, **options}, named)
    pod = manifests.the_pod(options["pod"])
    quotas = manifests.quotas(options["quota"]) if options["quota"] else ()
    return Inquiry(
        pod=pod,
        nodes=manifests.nodes(options["node"]) if options["node"] else (simulated(ready, options["simulate"]),),
        families=_families(ready),
        pods=manifests.pods(options["pods"]) if options["pods"] else (),
        hard={name: text for one in quotas if one.namespace == pod.namespace for name, text in one.limits.items()},
        order=options["gpu_scheduler_policy"],
        node_order=options["node_scheduler_policy"],
    )


def simulated(ready: Plan, name: str) -> NodeView:
    """The node that the daemon would register on the simulated machine."""
    annotations: dict[str, str] = {}
    for served in opened(ready, HostPaths()):
        try:
            snapshot = snapshot_of(served.driver)
        finally:
            served.driver.close()
        for family in served.vendor.families(served.settings):
            wanted = wanted_annotations(family, snapshot, Style())
            annotations |= {key: text for key, text in wanted.items() if text is not None}
    return NodeView(name=name, annotations=annotations)


def _families(ready: Plan) -> tuple[Family, ...]:
    return tuple(
        family
        for name, settings in ready.configuration.vendors.items()
        for family in load_vendor(name).families(settings)
    )
