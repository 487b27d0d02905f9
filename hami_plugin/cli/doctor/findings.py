"""What is wrong with a node, out of what was gathered of it: pure. Each finding has its cause and its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from hami_plugin.errors import HamiError, WireError
from hami_plugin.model.delivery import Way
from hami_plugin.model.device import Device
from hami_plugin.model.views import Json, major_minor
from hami_plugin.protocol.keys import OWN
from hami_plugin.protocol.nodes import DeviceInfo, decode_json, parse_lock


class Mark(StrEnum):
    """How a check ended, worst first."""

    FAILED = "failed"
    WARNING = "warning"
    OK = "ok"

    @property
    def failed(self) -> bool:
        return self is Mark.FAILED

    @property
    def sign(self) -> str:
        return {"failed": "✗", "warning": "!", "ok": "✓"}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line: what was checked, what was seen, and what to do about it."""

    check: str
    mark: Mark
    text: str
    remedy: str = ""

    @classmethod
    def of(cls, check: str, problem: Unavailable, mark: Mark = Mark.FAILED) -> Finding:
        return cls(check=check, mark=mark, text=problem.text, remedy=problem.remedy)


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, mark=Mark.OK, text=text)


def warning(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(check=check, mark=Mark.WARNING, text=text, remedy=remedy)


def failed(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(check=check, mark=Mark.FAILED, text=text, remedy=remedy)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first; among equals a cause before what follows from it, which is the order of the checks."""
    return tuple(sorted(findings, key=lambda one: list(Mark).index(one.mark)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """Why something could not be had, and what to do about that."""

    text: str
    remedy: str = ""

    @classmethod
    def of(cls, error: HamiError) -> Unavailable:
        return cls(text=error.message, remedy=error.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResource:
    """One family on this node. ``specs`` are why CDI names of its devices do not resolve; ``wanted`` the annotations
    that the node should have for them, None for those that it should not.

    ``offered`` is how many ids the kubelet should count.
    """

    name: str
    device_type: str
    offered: int
    host_problem: str = ""
    whole_only: str = ""
    unlimited: str = ""
    specs: tuple[str, ...] = ()
    wanted: Mapping[str, str | None] = field(default_factory=dict)
    register: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredVendor:
    """A vendor's devices with the versions that its driver tells."""

    devices: tuple[Device, ...]
    facts: Mapping[str, str]
    resources: tuple[NodeResource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorFacts:
    """A vendor that the daemon serves here. ``ways`` are how containers receive its devices, and ``why`` so.

    ``ignored`` is why the runtime would pass over CDI names, and what to do.
    """

    name: str
    found: DiscoveredVendor | Unavailable
    ways: tuple[Way, ...] = ()
    why: str = ""
    ignored: str = ""


class Socket(StrEnum):
    """What is at a socket's path."""

    ACCEPTS = "accepts"
    REFUSES = "nobody listens on it"
    OTHER = "it is no socket"
    ABSENT = "it does not exist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A directory of the daemon's. ``free`` is in bytes, None if unknown, as of ``inodes``."""

    what: str
    path: str
    problem: str = ""
    free: int | None = None
    inodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletFacts:
    """What is in the kubelet's directories. ``pod_resources`` and ``checkpoint`` are why these cannot be read.

    ``kept``: the kubelet has written a checkpoint, as it does with its first device.
    """

    path: str
    socket: Socket
    pod_resources: Unavailable | None = None
    checkpoint: Unavailable | None = None
    kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiFacts:
    """What the API server says to these credentials. ``node`` is None where there is none of that name, and empty where
    it may not be read. ``missing`` are rights, as ``patch nodes``.

    ``refused`` is why a trial write of each kind, which changes nothing, is refused. ``skew_s`` is how far this clock
    is ahead of the server's, in seconds; None if unknown. ``rivals`` are pods here that seem to be other device
    plugins for the same devices.
    """

    node: Json | None = None
    missing: tuple[str, ...] = ()
    refused: Mapping[str, Unavailable] = field(default_factory=dict)
    skew_s: float | None = None
    rivals: tuple[str, ...] = ()
    pods: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFacts:
    """The running daemon by its own port: problems by component, and the configuration in force, empty if unknown.

    ``usage`` is its ``/debug/usage``, empty if that was refused.
    """

    url: str
    components: Mapping[str, str] = field(default_factory=dict)
    alive: tuple[str, ...] = ()
    configuration: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """All that was gathered of a node. ``problems`` are those of the configuration, without which nothing else is."""

    node: str = ""
    origin: str = ""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    effective: Mapping[str, Any] = field(default_factory=dict)
    vendors: tuple[VendorFacts, ...] | Unavailable = ()
    kubelet: KubeletFacts | None = None
    directories: tuple[Directory, ...] = ()
    api: ApiFacts | Unavailable | None = None
    daemon: DaemonFacts | Unavailable | None = None
    locks: Mapping[str, timedelta] = field(default_factory=dict)
    now: datetime | None = None
    confinement: tuple[Finding, ...] = ()


MIB = 1 << 20
MIN_ROOM = 8 * MIB
LOW_ROOM = 64 * MIB
MIN_INODES = 64
SKEW_WARNING_S, SKEW_FAILED_S = 10.0, 60.0
"""Locks and tokens are judged by two machines' clocks."""
RUNBOOK = "docs/operations.md, 'When something goes wrong'"


def node_findings(facts: NodeFacts) -> tuple[Finding, ...]:
    """Everything about a node, causes first."""
    if facts.problems:
        remedy = "correct the configuration; the daemon would not start with it either"
        return tuple(failed("configuration", one, remedy) for one in facts.problems)
    return in_order(
        (
            *_configuration(facts),
            *_directories(facts.directories),
            *_vendors(facts.vendors),
            *_runtime(facts),
            *_host(facts),
            *facts.confinement,
            *_kubelet(facts.kubelet),
            *_api(facts),
            *_daemon(facts),
            *_specs(facts),
            *_rivals(facts),
            *_node(facts),
            *_annotations(facts),
            *_locks(facts),
            *_counts(facts),
            *_components(facts),
        )
    )


def _configuration(facts: NodeFacts) -> Iterator[Finding]:
    yield ok("configuration", f"is valid{f' ({facts.origin})' if facts.origin else ''}")
    for one in facts.warnings:
        yield warning("configuration", one, "correct the file that is named")


def _directories(directories: Iterable[Directory]) -> Iterator[Finding]:
    for one in directories:
        check = f"disk {one.what}"
        if one.problem:
            yield failed(check, f"{one.path}: {one.problem}", "mount it writable, where it is on the host")
        elif one.free is not None and one.free < MIN_ROOM:
            yield failed(check, f"{one.path} has {one.free // MIB} MiB left", "free the disk")
        elif one.inodes is not None and one.inodes < MIN_INODES:
            yield failed(check, f"{one.path} has {one.inodes} inodes left", "remove files from that file system")
        elif one.free is not None and one.free < LOW_ROOM:
            yield warning(check, f"{one.path} has {one.free // MIB} MiB left", "free the disk")
        else:
            yield ok(check, f"{one.path} can be written to")


def _served(facts: NodeFacts) -> Sequence[VendorFacts]:
    return () if isinstance(facts.vendors, Unavailable) else facts.vendors


def _resources(facts: NodeFacts) -> Iterator[NodeResource]:
    for vendor in _served(facts):
        if isinstance(vendor.found, DiscoveredVendor):
            yield from vendor.found.resources


def _vendors(vendors: Sequence[VendorFacts] | Unavailable) -> Iterator[Finding]:
    if isinstance(vendors, Unavailable):
        yield Finding.of("driver", vendors)
        return
    if not vendors:
        remedy = "look at lspci on the host; set vendors.<name>.enabled: true to see why its driver finds none"
        yield failed("driver", "this host has no hardware of any vendor that is enabled", remedy)
    for vendor in vendors:
        check = f"driver {vendor.name}"
        if isinstance(vendor.found, Unavailable):
            yield Finding.of(check, vendor.found)
            continue
        facts = ", ".join(f"{name} {value}" for name, value in vendor.found.facts.items())
        sick = [device for device in vendor.found.devices if not device.health.offered]
        for device in sick:
            text = f"device {device.number} ({device.uuid}) is unhealthy: {device.reason}: {device.message}"
            yield failed(check, text, "see the reason's remedy in docs/operations.md, 'Reasons of an unhealthy device'")
        well = len(vendor.found.devices) - len(sick)
        if well:
            yield ok(check, f"{well} devices answer{f' ({facts})' if facts else ''}")
        elif not sick:
            yield failed(check, "the driver lists no device", "look at lspci and dmesg on the host")


def _runtime(facts: NodeFacts) -> Iterator[Finding]:
    versions = _versions(facts)
    for vendor in _served(facts):
        check, by = f"runtime {vendor.name}", ", ".join(vendor.ways)
        cdi = any(way.cdi for way in vendor.ways)
        if not vendor.ways:
            continue
        if vendor.ignored:
            yield failed(check, f"devices are handed over by {by}, and {vendor.ignored}", "or deviceListStrategy: auto")
        elif cdi and (old := _without_cdi(versions.get("containerRuntimeVersion", ""))):
            yield failed(check, f"devices are handed over by {by}, and {old}", "update it, or use another strategy")
        elif vendor.ways == (Way.CDI_CRI,) and _below(versions.get("kubeletVersion", ""), (1, 28)):
            text = f"devices are handed over by {by}, which kubelet {versions['kubeletVersion']} drops"
            yield failed(check, text, "set deviceListStrategy: cdi-annotations")
        else:
            yield ok(check, f"devices are handed over by {by}: {vendor.why}")


FIRST_WITH_CDI = {"containerd": (1, 7), "cri-o": (1, 23)}


def _below(version: str, least: tuple[int, int]) -> bool:
    """Whether a version is known, and below ``least``."""
    numbers = major_minor(version)
    return numbers is not None and numbers < least


def _without_cdi(runtime: str) -> str:
    name, _, version = runtime.partition("://")
    least = FIRST_WITH_CDI.get(name)
    return f"{name} {version} reads no CDI names" if least and _below(version, least) else ""


def _versions(facts: NodeFacts) -> Mapping[str, str]:
    node = facts.api.node if isinstance(facts.api, ApiFacts) else None
    return texts(member(member(node or {}, "status"), "nodeInfo"))


def _host(facts: NodeFacts) -> Iterator[Finding]:
    for one in _resources(facts):
        check = f"host {one.name}"
        if one.host_problem:
            remedy = "install HAMi-core, as the chart's init container does, or follow the message"
            yield failed(check, one.host_problem, remedy)
        elif one.offered:
            yield ok(check, "the files that containers need are there")
        for why in filter(None, (one.whole_only, one.unlimited)):
            yield warning(check, why, "serve whole devices, or trust the containers (docs/gaps.md)")


def _kubelet(kubelet: KubeletFacts | None) -> Iterator[Finding]:
    if kubelet is None:
        return
    if kubelet.socket is not Socket.ACCEPTS:
        remedy = {
            Socket.ABSENT: "start the kubelet, or set kubeletDir to its device-plugins directory and mount that",
            Socket.REFUSES: "start the kubelet; where it runs, mount its directory and not the file",
        }.get(kubelet.socket, "remove it, and restart the kubelet")
        yield failed("kubelet socket", f"{kubelet.path}: {kubelet.socket.value}", remedy)
    else:
        yield ok("kubelet socket", f"{kubelet.path} accepts connections")
    for check, problem, well in (
        ("kubelet PodResources", kubelet.pod_resources, "can be read"),
        ("kubelet checkpoint", kubelet.checkpoint, "can be read" if kubelet.kept else "is not written yet"),
    ):
        yield Finding.of(check, problem) if problem else ok(check, well)


def _api(facts: NodeFacts) -> Iterator[Finding]:
    api = facts.api
    if api is None:
        return
    if isinstance(api, Unavailable):
        text = f"{api.text} (rights, clock and annotations were not checked)"
        yield failed("api server", text, api.remedy)
        return
    if api.node == {}:
        pass  # a right is missing
    elif api.node is None:
        yield failed(
            "api server",
            f"there is no node {facts.node}",
            "set NODE_NAME, --node-name or nodeName to the name that kubectl get nodes prints",
        )
    else:
        yield ok("api server", f"answers, and has node {facts.node}")
    yield from _rights(api)
    for what, problem in api.refused.items():
        yield failed(f"admission {what}", problem.text, problem.remedy)
    if not api.refused:
        yield ok("admission", "lets the daemon's writes through")
    yield from _clock(api.skew_s)


def _rights(api: ApiFacts) -> Iterator[Finding]:
    if api.missing:
        text = f"these credentials may not {', '.join(api.missing)}"
        yield failed("rights", text, "apply the ClusterRole and its binding of the chart or daemonset.yaml")
    else:
        yield ok("rights", "are complete")


def _clock(skew: float | None) -> Iterator[Finding]:
    if skew is None:
        yield warning("clock", "could not be compared with the API server's")
    elif abs(skew) >= SKEW_WARNING_S:
        text = f"this clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the API server's"
        remedy = "synchronize the machines' clocks (chrony, systemd-timesyncd); locks and tokens are judged by them"
        yield (failed if abs(skew) >= SKEW_FAILED_S else warning)("clock", text, remedy)
    else:
        yield ok("clock", "agrees with the API server's")


def _daemon(facts: NodeFacts) -> Iterator[Finding]:
    daemon = facts.daemon
    if isinstance(daemon, Unavailable):
        yield Finding.of("daemon", daemon)
    if not isinstance(daemon, DaemonFacts):
        return
    for one in daemon.alive:
        yield failed("daemon", f"stands still: {one}", "look at dmesg; the kubelet restarts the container")
    yield ok("daemon", f"answers at {daemon.url}")
    if other := sorted(_different(facts.effective, daemon.configuration)):
        shown = ", ".join(other[:5]) + (f" and {len(other) - 5} more" if len(other) > 5 else "")
        remedy = "restart the daemon, or give this command the daemon's options"
        yield warning("configuration", f"the running daemon has other values of {shown}", remedy)


def _different(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys whose values differ; none if ``theirs`` is unknown."""
    if not theirs:
        return
    for key in ours.keys() | theirs.keys():
        mine, other = ours.get(key), theirs.get(key)
        if isinstance(mine, Mapping) and isinstance(other, Mapping) and other:
            yield from _different(mine, other, f"{prefix}{key}.")
        elif mine != other:
            yield f"{prefix}{key}"


def _components(facts: NodeFacts) -> Iterator[Finding]:
    """What the daemon itself reports, last: the causes of most of it have lines of their own."""
    if not isinstance(facts.daemon, DaemonFacts):
        return
    for component, problem in facts.daemon.components.items():
        if problem and not problem.startswith(DISPLACED):
            yield failed(f"daemon: {component}", problem, RUNBOOK)
    if not any(facts.daemon.components.values()):
        yield ok("daemon", "is ready")
    for device in items(facts.daemon.usage, "devices"):
        if device.get("health") not in ("healthy", "suspect"):
            text = f"keeps device {device.get('number')} back: {device.get('health')}: {device.get('reason')}"
            yield warning(
                "daemon", text, "it comes back by itself once it was seen well (docs/operations.md, 'Health')"
            )


DISPLACED = "displaced"


def _specs(facts: NodeFacts) -> Iterator[Finding]:
    for one in _resources(facts):
        for why in one.specs:
            yield failed(f"cdi {one.name}", why, "see docs/cdi.md; hami-plugin cdi validate names a file's faults")


def _rivals(facts: NodeFacts) -> Iterator[Finding]:
    components = facts.daemon.components if isinstance(facts.daemon, DaemonFacts) else {}
    rivals = facts.api.rivals if isinstance(facts.api, ApiFacts) else ()
    named = f" (pods that look like one: {', '.join(rivals)})" if rivals else ""
    displaced = False
    for component, problem in components.items():
        if problem.startswith(DISPLACED):
            displaced = True
            text, _, remedy = problem.partition("; ")
            yield failed(f"other plugins: {component.removeprefix('kubelet ')}", f"{text}{named}", remedy)
    if rivals and not displaced:
        text = f"pods here look like device plugins for the same devices: {', '.join(rivals)}"
        yield warning("other plugins", text, "of two plugins for a resource the last to register wins; remove one")


def _node(facts: NodeFacts) -> Iterator[Finding]:
    node = facts.api.node if isinstance(facts.api, ApiFacts) else None
    if not node:
        return
    info = _versions(facts)
    shown = ", ".join(filter(None, (f"kubelet {info.get('kubeletVersion', '')}", info.get("containerRuntimeVersion"))))
    if _below(info.get("kubeletVersion", ""), (1, 20)):
        yield failed("node", f"{shown}: PodResources v1 came with 1.20", "update the kubelet")
    ready = next((one for one in items(member(node, "status"), "conditions") if one.get("type") == "Ready"), None)
    if ready and ready.get("status") != "True":
        yield failed(
            "node", f"is not ready: {text_in(ready, 'message') or text_in(ready, 'reason')}", "look at the kubelet"
        )
    elif ready:
        yield ok("node", f"is ready ({shown})")
    if member(node, "spec").get("unschedulable"):
        yield warning("node", "is cordoned: no pod is placed here", "kubectl uncordon, when it is meant to serve")


def _annotations(facts: NodeFacts) -> Iterator[Finding]:
    live = _live(facts)
    if live is None:
        return
    for one in _resources(facts):
        for key, wanted in one.wanted.items():
            if text := _contradiction(one, key, wanted, live.get(key)):
                remedy = "the daemon mends it within a second; if it stays, see the daemon's lines"
                yield failed(f"annotation {key}", text, remedy)
    if any(one.wanted for one in _resources(facts)):
        yield ok("annotations", "were compared with the node's devices")


def _live(facts: NodeFacts) -> Mapping[str, str] | None:
    if not isinstance(facts.api, ApiFacts) or not facts.api.node:
        return None
    return texts(member(member(facts.api.node, "metadata"), "annotations"))


def _contradiction(resource: NodeResource, key: str, wanted: str | None, live: str | None) -> str:
    """What an annotation says that is not so; empty where nothing is wrong. Only the register is judged by content.

    Health is left out: the daemon remembers faults that are over.
    """
    if key != resource.register:
        return f"says {live!r:.80}, and nothing is so" if wanted is None and live and key.startswith(OWN) else ""
    if wanted is None or live is None:
        missing = "is missing, so that no scheduler knows of the devices" if wanted else ""
        return "registers devices that are not here" if live else missing
    try:
        ours, theirs = _by_id(wanted), _by_id(live)
    except WireError as error:
        return "" if live == wanted else f"cannot be read: {error}"
    return _other_devices(ours, theirs)


def _other_devices(ours: Mapping[str, DeviceInfo], theirs: Mapping[str, DeviceInfo]) -> str:
    """How a register differs from the devices."""
    if gone := sorted(theirs.keys() - ours.keys()):
        return f"registers devices that are not here: {', '.join(gone[:4])}"
    if unknown := sorted(ours.keys() - theirs.keys()):
        return f"lacks devices of this node: {', '.join(unknown[:4])}"
    other = next((uuid for uuid in sorted(ours) if ours[uuid] != theirs[uuid]), "")
    return f"describes {other} as {theirs[other]}, and it is {ours[other]}" if other else ""


def _by_id(annotation: str) -> Mapping[str, DeviceInfo]:
    return {one.id: replace(one, health=True) for one in decode_json(annotation)}


def _locks(facts: NodeFacts) -> Iterator[Finding]:
    live = _live(facts)
    if live is None or facts.now is None:
        return
    yield from stale_locks(live, facts.locks, facts.now, facts.node)


def stale_locks(
    annotations: Mapping[str, str], locks: Mapping[str, timedelta], now: datetime, node: str
) -> Iterator[Finding]:
    """The locks of a node that nobody can still need."""
    for key, expires in locks.items():
        if key not in annotations:
            continue
        remedy = f"kubectl annotate node {node} {key}-"
        try:
            lock = parse_lock(annotations[key])
        except WireError as error:
            yield failed("node lock", f"{key} cannot be read: {error}", remedy)
            continue
        if now - lock.time >= expires:
            whose = f"of pod {lock.namespace}/{lock.pod}" if lock.pod else "without an owner"
            age = (now - lock.time).total_seconds() / 60
            yield failed("node lock", f"{key} {whose} is {age:.0f} min old: no other pod is bound here", remedy)


def _counts(facts: NodeFacts) -> Iterator[Finding]:
    node = facts.api.node if isinstance(facts.api, ApiFacts) else None
    if not node:
        return
    allocatable = texts(member(member(node, "status"), "allocatable"))
    for one in _resources(facts):
        counted = allocatable.get(one.name, "0")
        if one.offered and counted == "0":
            text = f"the kubelet counts 0 {one.name}, and {one.offered} shares are here"
            yield failed("count", text, "see the daemon's and the kubelet's lines")
        elif one.offered and counted != str(one.offered):
            text = f"the kubelet counts {counted} {one.name}, and {one.offered} shares are here"
            yield warning("count", text, "devices that the daemon keeps back are missing for a while")
        elif one.offered:
            yield ok("count", f"the kubelet counts {counted} {one.name}")


def member(parent: Json, key: str) -> Json:
    """A mapping in a JSON object; empty where there is none."""
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}


def items(parent: Json, key: str) -> Iterator[Json]:
    """The mappings of a list in a JSON object."""
    value = parent.get(key)
    return (one for one in value if isinstance(one, Mapping)) if isinstance(value, list) else iter(())


def text_in(parent: Json, key: str) -> str:
    """A text in a JSON object; empty where there is none."""
    value = parent.get(key)
    return value if isinstance(value, str) else ""


def texts(parent: Json) -> Mapping[str, str]:
    """The members that are texts."""
    return {key: value for key, value in parent.items() if isinstance(value, str)}
