"""How a node's devices are offered where the settings leave it open (``frontEnd: auto``): by the node's label, else by
what the API server and the kubelet can do, decided once in a process's life.

The devices of a vendor are then offered in that way alone. What pods still have in the other way is left to them: see
``daemon.dra``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, Protocol

from hami_plugin.config.load import Configuration
from hami_plugin.config.vendors import AUTO, ServedSettings
from hami_plugin.errors import ClusterError, HamiError
from hami_plugin.host.files import write_atomically
from hami_plugin.model.delivery import Way
from hami_plugin.model.views import NodeView
from hami_plugin.process.concurrency import Watched, start_on_thread, wait_result
from hami_plugin.process.log import logger
from hami_plugin.sdk import load_vendor

log = logger(__name__)

DRA, DEVICE_PLUGIN = "dra", "device-plugin"

KUBERNETES = 36
"""The minor version since when several claims may have parts of one device, without a feature gate."""
ASK_S, FAMILIES_S = 10.0, 10.0
FILE = "front-ends.json"
MAX_BYTES = 1 << 16


def label(vendor: str) -> str:
    """The node's label that says how a vendor's devices are offered there."""
    return f"hami-plugin.io/{vendor}-front-end"


class FrontEndCluster(Protocol):
    """The API server, as far as this is decided by it."""

    async def get_node(self) -> NodeView: ...

    async def minor_version(self) -> int:
        """Of Kubernetes 1."""

    async def serves_claims(self) -> bool:
        """Whether it has resource.k8s.io/v1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnds:
    """What was decided for each vendor that is left open, and why one is ``unable`` to go by claims, where that is
    known. ``again`` ends the process, so that it is decided anew.
    """

    chosen: Mapping[str, str] = field(default_factory=dict)
    unable: Mapping[str, str] = field(default_factory=dict)
    again: Callable[[], None] = lambda: None

    def settled(self, configuration: Configuration) -> Configuration:
        """The configuration with nothing left open."""
        sections = {
            name: section.model_copy(update={"front_end": self.chosen.get(name, DEVICE_PLUGIN)})
            if isinstance(section, ServedSettings) and section.front_end == AUTO
            else section
            for name, section in configuration.sections.items()
        }
        return replace(configuration, sections=sections)

    async def follow(self, node: Watched[NodeView | None]) -> NoReturn:
        """End the process when the node's labels say otherwise: its next life offers the devices in the other way, as
        they become free.
        """
        while True:
            seen = node.version
            for vendor, unable in self.unable.items() if node.value else ():
                wanted, why = _wanted(vendor, node.value.labels if node.value else {}, unable)
                if wanted != self.chosen[vendor]:
                    log.warning("front end changes; the daemon starts anew", vendor=vendor, to=wanted, why=why)
                    self.again()
            await node.changed(seen)


def open_vendors(configuration: Configuration) -> Sequence[str]:
    """The vendors whose settings leave it open."""
    return [
        name
        for name, section in configuration.vendors.items()
        if isinstance(section, ServedSettings) and section.front_end == AUTO
    ]


async def decide(
    configuration: Configuration, cluster: FrontEndCluster, *, within: float = ASK_S
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The front end of each vendor that is left open, and why it could not be DRA, if so.

    While the API server cannot be asked, it is what it was in the last life.
    """
    vendors, settings = open_vendors(configuration), configuration.settings
    if not vendors:
        return {}, {}
    file = settings.state_dir / FILE
    try:
        async with asyncio.timeout(within):
            labels = (await cluster.get_node()).labels
            obstacle = await _obstacle(cluster, settings.kubelet_dir.parent / "plugins_registry")
    except (ClusterError, TimeoutError) as error:
        former = await asyncio.to_thread(_remembered, file)
        chosen = {name: former.get(name, DEVICE_PLUGIN) for name in vendors}
        log.warning("front ends as before", chosen=chosen, why=str(error) or f"no answer within {within:g} s")
        return chosen, {}
    unable = {name: obstacle or await asyncio.to_thread(_unable, name, configuration) for name in vendors}
    chosen = {}
    for name in vendors:
        chosen[name], why = _wanted(name, labels, unable[name])
        log.info("front end", vendor=name, chosen=chosen[name], why=why)
    await asyncio.to_thread(_remember, file, chosen)
    return chosen, unable


def _wanted(vendor: str, labels: Mapping[str, str], unable: str) -> tuple[str, str]:
    """What it is to be, and why. A label that asks for what cannot be is not followed."""
    asked = labels.get(label(vendor), AUTO)
    if asked == DEVICE_PLUGIN:
        return DEVICE_PLUGIN, f"label {label(vendor)}"
    if asked not in (AUTO, DRA):
        return DEVICE_PLUGIN, f"label {label(vendor)} is {asked[:64]!r}; write dra, device-plugin or auto"
    if unable:
        return DEVICE_PLUGIN, unable
    return DRA, f"label {label(vendor)}" if asked == DRA else "the cluster and the kubelet can"


async def _obstacle(cluster: FrontEndCluster, registry: Path) -> str:
    """Why claims cannot be served on this node, whoever's; empty when they can."""
    if not await cluster.serves_claims():
        return "the API server has no resource.k8s.io/v1"
    if (minor := await cluster.minor_version()) < KUBERNETES:
        return f"Kubernetes 1.{minor} shares devices by claims with a feature gate only; from 1.{KUBERNETES} on it does"
    if not await asyncio.to_thread(registry.is_dir):
        return f"the kubelet has no {registry}, or it is not mounted"
    return ""


def _unable(name: str, configuration: Configuration) -> str:
    """Why this vendor's devices cannot go by claims; empty when they can."""
    section = configuration.sections[name]
    assert isinstance(section, ServedSettings)
    if Way.CDI_CRI not in section.served_ways:
        return "the vendor's devices are not delivered by CDI"
    by_claims = section.model_copy(update={"front_end": DRA, "device_list_strategy": (Way.CDI_CRI,)})
    try:
        families = wait_result(
            start_on_thread(f"families of {name}", lambda: load_vendor(name).families(by_claims)), timeout=FAMILIES_S
        )
    except Exception as error:  # noqa: BLE001  # the vendor's own start tells it
        return f"its families cannot be listed: {error}"
    if any(family.node.partitions for family in families):
        return "cards are cut for containers"
    if any(family.resources.sized_by_count for family in families):
        return "its cards may be lent in pieces that no claim can ask for"
    return ""


def _remembered(file: Path) -> Mapping[str, str]:
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    items: Iterable[tuple[object, object]] = found.items() if isinstance(found, dict) else ()
    return {str(name): str(value) for name, value in items if value in (DRA, DEVICE_PLUGIN)}


def _remember(file: Path, chosen: Mapping[str, str]) -> None:
    try:
        write_atomically(file, json.dumps(dict(chosen)))
    except (OSError, HamiError) as error:
        log.warning("front ends not remembered", file=str(file), why=str(error))
