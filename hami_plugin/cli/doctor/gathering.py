"""Gathers what is known of a node: files, sockets, driver, API server, the daemon's port. It changes nothing.

Each source has a deadline and a bound of its own, and one that hangs or fails is a fact as well. So is what may keep a
limiter's library from a container: SELinux, and a C library that it does not fit.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import re
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from cdi.errors import CdiError
from cdi.store import load
from hami_plugin import __version__
from hami_plugin.cli.doctor.asking import OPENING_S, PAGE_S, daemons_page, daemons_url, within
from hami_plugin.cli.doctor.findings import (
    ApiFacts,
    DaemonFacts,
    Directory,
    DiscoveredVendor,
    Finding,
    KubeletFacts,
    NodeFacts,
    NodeResource,
    Socket,
    Unavailable,
    VendorFacts,
    failed,
    items,
    member,
    ok,
    text_in,
    warning,
)
from hami_plugin.cli.live import api_calls, list_all
from hami_plugin.cli.pages import text as page_text
from hami_plugin.cli.snapshot import snapshot_of
from hami_plugin.cluster.client import PODS, node_path
from hami_plugin.cluster.requests import ApiCall, ApiCalls
from hami_plugin.config.settings import Settings
from hami_plugin.daemon.startup import Options, ServedVendor, StartPlan, open_drivers, plan
from hami_plugin.errors import ClusterError, ConfigError, DriverUnavailableError, HamiError
from hami_plugin.host.bounded_yaml import read_yaml
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.inventory.cdi_specs import PREFIX, describe, file_name, unresolved_faults
from hami_plugin.inventory.inventory import part
from hami_plugin.kubelet.endpoint import KUBELET_SOCKET
from hami_plugin.kubelet.holders import CheckpointFile, PodResourcesClient
from hami_plugin.kubelet.listener import accepts
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.views import Json
from hami_plugin.node_status.registration import Style, Traces, wanted_annotations
from hami_plugin.process.concurrency import StuckError
from hami_plugin.protocol.nodes import unhealthy_key
from hami_plugin.scheduler.extender.app import families
from hami_plugin.sdk import Family

PROC, SYS = Path("/proc"), Path("/sys")
MAX_LIBRARY = 64 << 20
_NEEDS = re.compile(rb"\0GLIBC_2\.(\d{1,3})(?:\.\d{1,3})?(?=\0)")
READABLE = frozenset(
    ("container_file_t", "container_ro_file_t", "container_share_t", "usr_t", "lib_t", "bin_t", "textrel_shlib_t")
)
"""Types that every container may read under the usual policies."""
CONFINED = "container_t"
"""The type of ordinary containers, which may not connect to the kubelet's sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """``own`` is the SELinux type of this process, ``library`` that of the limiter's library at ``path``; empty where
    there is none. ``glibc`` is the minor version of glibc 2 that the library needs, 0 if that is unknown.
    """

    enforcing: bool = False
    own: str = ""
    path: str = ""
    library: str = ""
    glibc: int = 0


def label_of(path: Path) -> str:
    """A file's SELinux label; empty where it has none."""
    with suppress(OSError):
        return os.getxattr(path, "security.selinux").decode(errors="replace").strip("\0")
    return ""


def confinement(
    hook: Path, *, proc: Path = PROC, sysfs: Path = SYS, label: Callable[[Path], str] = label_of
) -> Confinement:
    """Of this process and the libraries below HAMi's hook path."""
    found = next((one for one in sorted((hook / "vgpu").glob("lib*.so*")) if one.is_file()), None)
    return Confinement(
        enforcing=_text(sysfs / "fs/selinux/enforce") == "1",
        own=_type(_text(proc / "self/attr/current")),
        path=str(found or ""),
        library=_type(label(found)) if found else "",
        glibc=_needed(found) if found else 0,
    )


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(4096).decode(errors="replace").strip("\0\n ")
    except OSError:
        return ""


def _type(label: str) -> str:
    """``container_t`` of ``system_u:system_r:container_t:s0``."""
    parts = label.split(":")
    return parts[2] if len(parts) > 2 else ""


def _needed(library: Path) -> int:
    try:
        with library.open("rb") as file:
            return max((int(minor) for minor in _NEEDS.findall(file.read(MAX_LIBRARY))), default=0)
    except OSError:
        return 0


def confined(facts: Confinement) -> Iterator[Finding]:
    """Causes of containers without limits, and of a daemon that reaches nobody."""
    if facts.enforcing and facts.own == CONFINED:
        text = f"is enforcing, and this process runs as {CONFINED}, which may not use the kubelet's sockets"
        yield failed("SELinux", text, "set seLinuxOptions: {type: container_device_plugin_t} for the daemon")
    elif facts.enforcing and facts.library and facts.library not in READABLE:
        text = f"is enforcing, and {facts.path} is {facts.library}, which containers may not read: they have no limits"
        yield warning("SELinux", text, f"chcon -R -t container_file_t {Path(facts.path).parent}")
    elif facts.enforcing:
        yield ok("SELinux", "is enforcing, and lets this process and the limiter's library through")
    if facts.glibc:
        needs = f"{Path(facts.path).name} needs glibc 2.{facts.glibc} in containers"
        yield ok("C library", f"{needs}; images with an older one, or with musl, run without limits")


T = TypeVar("T")

FILE_S = 5.0
"""How long a file system may take."""
DRIVER_S = 20.0
MAX_END = 1 << 19
MAX_SPECS = 512
RIGHTS = (
    *(("nodes", verb) for verb in ("get", "list", "watch", "patch")),
    *(("pods", verb) for verb in ("list", "watch", "patch")),
    *(("events", verb) for verb in ("create", "patch")),
)
"""What the daemon asks of the API server."""
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
DRY = {"dryRun": "All"}


async def node_facts(options: Options, environment: Mapping[str, str], *, origin: str = "", url: str = "") -> NodeFacts:
    """Everything about this node, with the daemon's configuration. ``url`` is the daemon's port, if it is elsewhere."""
    try:
        ready = await within(OPENING_S, "configuration", lambda: plan(options, environment))
    except ConfigError as error:
        return NodeFacts(problems=error.problems, origin=origin)
    except HamiError as error:
        return NodeFacts(problems=(str(error),), origin=origin)
    settings = ready.configuration.settings
    host = HostPaths(hook=settings.hook_path, hook_view=settings.hook_path)
    vendors, kubelet, directories, daemon = await asyncio.gather(
        _vendors(ready, host), _kubelet(settings), _directories(settings, _in_use(ready)), _daemon(settings, url)
    )
    types = [one.device_type for vendor in _well(vendors) for one in vendor.resources]
    return NodeFacts(
        node=settings.node_name,
        origin=origin or ", ".join(ready.configuration.sources),
        warnings=ready.configuration.warnings,
        effective=ready.configuration.effective(),
        vendors=vendors,
        kubelet=kubelet,
        directories=directories,
        api=await _api(options["kubeconfig"], environment, settings, types, _words(vendors)),
        daemon=daemon,
        locks=Traces.of(families(ready.configuration)).locks,
        now=datetime.now(tz=UTC),
        confinement=await _confinement(settings.hook_path),
    )


# -- drivers


def _in_use(ready: StartPlan) -> bool:
    """Whether CDI may be in use."""
    return any(getattr(one, "automatic", False) or _cdi(one) for one in ready.configuration.vendors.values())


def _cdi(settings: object) -> bool:
    delivery = getattr(settings, "delivery", None)
    return bool(delivery and delivery.cdi)


async def _vendors(ready: StartPlan, host: HostPaths) -> tuple[VendorFacts, ...] | Unavailable:
    try:
        served = await within(OPENING_S, "opening", lambda: open_drivers(ready, host))
    except StuckError:
        return Unavailable(text=f"the vendors' drivers are not opened within {OPENING_S:g} s", remedy="look at dmesg")
    except HamiError as error:
        return Unavailable.of(error)
    own = ready.configuration.settings
    return tuple(await asyncio.gather(*(_vendor(one, own, host) for one in served)))


async def _vendor(served: ServedVendor, own: Settings, host: HostPaths) -> VendorFacts:
    """One vendor's devices, and what this host has for its containers."""
    handover = served.handover
    facts = VendorFacts(
        name=served.vendor.name,
        found=Unavailable(text=""),
        ways=handover.ways if handover else (),
        why=handover.why if handover else "",
        ignored=handover.ignored if handover else "",
    )
    try:
        found = await within(DRIVER_S, f"driver {facts.name}", lambda: _found(served, own, HostFiles(paths=host)))
    except StuckError:
        text = f"DriverHung: no answer within {DRIVER_S:g} s"
        return replace(facts, found=Unavailable(text=text, remedy="look at dmesg; usually only a reboot helps"))
    except DriverUnavailableError as error:
        return replace(facts, found=Unavailable(text=f"{error.reason}: {error.message}", remedy=error.hint))
    except HamiError as error:
        return replace(facts, found=Unavailable.of(error))
    except Exception as error:  # noqa: BLE001  # the line between one vendor and all others
        text = f"its code failed unexpectedly: {type(error).__name__}: {error}"[:500]
        return replace(facts, found=Unavailable(text=text, remedy="report it; enabled: false if it is not needed"))
    return replace(facts, found=found)


def _found(served: ServedVendor, own: Settings, host: HostFiles) -> DiscoveredVendor:
    """On the vendor's thread."""
    try:
        snapshot = snapshot_of(served.driver)
        families = served.vendor.families(served.settings)
        alone = len(families) == 1 and not served.vendor.further
        resources = [
            _resource(one, snapshot if alone else part(snapshot, one.resources.device_type), own, host)
            for one in families
        ]
    finally:
        with suppress(Exception):
            served.driver.close()
    return DiscoveredVendor(devices=snapshot.devices, facts=snapshot.facts, resources=tuple(resources))


def _resource(family: Family, snapshot: Snapshot, own: Settings, host: HostFiles) -> NodeResource:
    node, devices = family.node, snapshot.devices
    offered = [device for device in devices if device.health.offered]
    limited = any(node.limited(device) for device in devices)
    style = Style(legacy=own.register_format == "legacy", scores=False)
    wanted = {} if node.partitions or node.tells_taken else wanted_annotations(family, snapshot, style)
    return NodeResource(
        name=family.resources.count,
        device_type=family.resources.device_type,
        offered=sum(map(node.replicas, offered)),
        host_problem=node.host_problem(host) if limited else "",
        whole_only=node.whole_only if devices else "",
        unlimited=node.unlimited if devices else "",
        specs=_unresolved(family, offered, own, host) if node.delivery.cdi and offered and not node.partitions else (),
        wanted=wanted,
        register=family.rules.annotations.register,
    )


def _unresolved(family: Family, devices: Sequence[Device], own: Settings, host: HostFiles) -> tuple[str, ...]:
    """Why a runtime would not find the devices, as the daemon judges it before it offers them."""
    file = str(own.cdi_dirs[-1] / file_name(family.node.delivery.kind))
    try:
        spec, problems = describe(family, devices, host)
        faults = unresolved_faults(spec, file, devices, load(own.cdi_dirs, yaml=read_yaml))
    except (CdiError, OSError) as error:
        return (str(error),)
    causes = dict.fromkeys(f"{fault.reason}: {fault.message}" for fault in faults.values())
    return (*tuple(causes)[:4], *(problems if causes else ()))


def _well(vendors: Sequence[VendorFacts] | Unavailable) -> Iterator[DiscoveredVendor]:
    for one in () if isinstance(vendors, Unavailable) else vendors:
        if isinstance(one.found, DiscoveredVendor):
            yield one.found


def _words(vendors: Sequence[VendorFacts] | Unavailable) -> tuple[str, ...]:
    """What the name of another plugin for the same devices would have in it."""
    own = () if isinstance(vendors, Unavailable) else tuple(one.name for one in vendors)
    domains = {one.name.split("/")[0].split(".")[0] for found in _well(vendors) for one in found.resources}
    return tuple(sorted({*own, *domains, "vgpu"}))


# -- files and sockets


async def _kubelet(settings: Settings) -> KubeletFacts:
    path = settings.kubelet_dir / KUBELET_SOCKET
    resources = PodResourcesClient(settings.pod_resources_socket, timeout=FILE_S)
    checkpoint = CheckpointFile(settings.kubelet_dir, timeout=FILE_S)
    socket, asked, unread = await asyncio.gather(
        _socket(path), _tried(resources.everything()), _tried(checkpoint.kept("", frozenset()))
    )
    with suppress(OSError, StuckError):
        if unread and not await within(FILE_S, "checkpoint", checkpoint.path.exists):
            return KubeletFacts(path=str(path), socket=socket, pod_resources=asked, kept=False)
    return KubeletFacts(path=str(path), socket=socket, pod_resources=asked, checkpoint=unread)


async def _tried(asked: Awaitable[object]) -> Unavailable | None:
    """Why nothing came of it; None where something did."""
    try:
        await asked
    except HamiError as error:
        return Unavailable.of(error)
    return None


async def _socket(path: Path) -> Socket:
    try:
        mode = (await within(FILE_S, "socket", path.stat)).st_mode
    except (OSError, StuckError):
        return Socket.ABSENT
    if not stat.S_ISSOCK(mode):
        return Socket.OTHER
    return Socket.ACCEPTS if await accepts(path) else Socket.REFUSES


async def _directories(settings: Settings, cdi: bool) -> tuple[Directory, ...]:
    named = {"state": settings.state_dir, "kubelet": settings.kubelet_dir}
    if cdi and settings.cdi_dirs[-1].exists():
        named["cdi"] = settings.cdi_dirs[-1]
    return tuple(await asyncio.gather(*(_directory(what, path) for what, path in named.items())))


async def _directory(what: str, path: Path) -> Directory:
    try:
        return await within(FILE_S, f"directory {what}", lambda: _nearest_directory(what, path))
    except StuckError:
        return Directory(what=what, path=str(path), problem=f"its file system does not answer within {FILE_S:g} s")
    except OSError as error:
        return Directory(what=what, path=str(path), problem=error.strerror or str(error))


def _nearest_directory(what: str, path: Path) -> Directory:
    """The nearest directory that exists, since the daemon makes what is missing."""
    if path.exists() and not path.is_dir():
        return Directory(what=what, path=str(path), problem="it is not a directory")
    there = next(one for one in (path, *path.parents) if one.exists())
    room = os.statvfs(there)
    problem = "" if os.access(there, os.W_OK | os.X_OK) else "it cannot be written to (read-only, or another owner's)"
    return Directory(
        what=what,
        path=str(path),
        problem=problem,
        free=room.f_bavail * room.f_frsize if room.f_blocks else None,
        inodes=room.f_favail if room.f_files else None,
    )


async def _confinement(hook: Path) -> tuple[Finding, ...]:
    """What SELinux and the limiter's library say, already judged."""
    try:
        return tuple(confined(await within(FILE_S, "confinement", lambda: confinement(hook))))
    except (StuckError, OSError) as error:
        return (warning("SELinux", f"was not looked at: {error}"),)


# -- the daemon's port


async def _daemon(settings: Settings, url: str) -> DaemonFacts | Unavailable:
    url = url or daemons_url(settings)
    names = ("readyz", "healthz", "debug/config", "debug/usage")
    pages = await asyncio.gather(*(daemons_page(url, name) for name in names))
    ready, alive, configuration, usage = pages
    if isinstance(ready, Unavailable):
        remedy = "kubectl get pods shows whether it runs, and its log why not; --url says where it answers"
        return Unavailable(text=ready.text, remedy=remedy)
    return DaemonFacts(
        url=url,
        components={key: str(value) for key, value in member(ready, "components").items()},
        alive=() if isinstance(alive, Unavailable) else tuple(map(str, alive.get("problems") or ())),
        configuration={} if isinstance(configuration, Unavailable) else configuration,
        usage={} if isinstance(usage, Unavailable) else usage,
    )


# -- the API server


async def _api(
    kubeconfig: Path | None,
    environment: Mapping[str, str],
    settings: Settings,
    types: Sequence[str],
    words: Sequence[str],
) -> ApiFacts | Unavailable:
    try:
        async with api_calls(kubeconfig, environment) as calls:
            return await _Asking(calls, settings, types, words).facts()
    except ConfigError as error:
        return Unavailable(text=str(error), remedy="run it in the daemon's pod, or give --kubeconfig")
    except ClusterError as error:
        return Unavailable.of(error)


@dataclass(frozen=True, slots=True)
class _Asking:
    calls: ApiCalls
    settings: Settings
    types: Sequence[str]
    words: Sequence[str]

    async def facts(self) -> ApiFacts:
        """``ClusterError`` where the server does not answer, or does not know us."""
        name = self.settings.node_name
        missing = await self._missing()
        try:
            node = await self.calls.json(ApiCall(verb="get", kind="nodes", path=node_path(name), name=name))
        except ClusterError as error:
            if error.not_found:
                return ApiFacts(missing=missing)
            if missing:
                return ApiFacts(node={}, missing=missing)
            raise
        writes = {"of nodes": self._dry_node(name), "of Events": self._dry_event(name)}
        answers = await asyncio.gather(*writes.values())
        refused = {
            what: problem for what, problem in zip(writes, answers, strict=True) if isinstance(problem, Unavailable)
        }
        if missing:  # a right that is missing refuses them as well
            refused = {}
        skew = next((one for one in answers if isinstance(one, float)), None)
        pods = await self._pods(name)
        return ApiFacts(
            node=node,
            missing=missing,
            refused=refused,
            skew_s=skew,
            rivals=tuple(self._rivals(pods)),
            pods=pods,
        )

    async def _missing(self) -> tuple[str, ...]:
        answers = await asyncio.gather(*(self._may(kind, verb) for kind, verb in RIGHTS))
        return tuple(f"{verb} {kind}" for (kind, verb), may in zip(RIGHTS, answers, strict=True) if not may)

    async def _may(self, kind: str, verb: str) -> bool:
        """Whether these credentials have a right; yes where the server does not say."""
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": verb, "resource": kind, "group": ""}},
        }
        call = ApiCall(verb="create", kind="selfsubjectaccessreviews", path=REVIEWS, name=f"{verb} {kind}", body=body)
        try:
            answer = await self.calls.json(call)
        except ClusterError as error:
            if error.status in (403, 404, 405):
                return True
            raise
        return member(answer, "status").get("allowed") is not False

    async def _dry_node(self, name: str) -> Unavailable | None:
        """A trial patch of an annotation of ours: rights and admission policies judge it, and nothing is stored."""
        if not self.types:
            return None
        body = {"metadata": {"annotations": {unhealthy_key(self.types[0]): "trial"}}}
        call = ApiCall(verb="patch", kind="nodes", path=node_path(name), name=name, query=DRY, body=body)
        try:
            await self.calls.json(call)
        except ClusterError as error:
            return _refusal(error)
        return None

    async def _dry_event(self, node: str) -> Unavailable | float | None:
        """A trial Event. Its time is the server's: how far this clock is ahead of that, in seconds."""
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "hami-plugin-trial-", "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node},
            "type": "Normal",
            "reason": "Trial",
            "message": "trial",
            "source": {"component": "hami-plugin", "host": node},
        }
        path = "/api/v1/namespaces/default/events"
        before = time.time()
        try:
            made = await self.calls.json(
                ApiCall(verb="create", kind="events", path=path, name="a trial Event", query=DRY, body=body)
            )
        except ClusterError as error:
            return _refusal(error)
        try:
            there = datetime.fromisoformat(text_in(member(made, "metadata"), "creationTimestamp"))
        except ValueError:
            return None
        return (before + time.time()) / 2 - there.timestamp() - 0.5  # it has no fractions of a second

    async def _pods(self, node: str) -> tuple[Json, ...]:
        try:
            return await list_all(self.calls, "pods", PODS, {"fieldSelector": f"spec.nodeName={node}"})
        except ClusterError:
            return ()

    def _rivals(self, pods: Iterable[Json]) -> Iterator[str]:
        """Pods that mount the kubelet's directory of plugins, are not ours, and name the same devices."""
        ours, plugins = self.settings.state_dir, self.settings.kubelet_dir
        for pod in pods:
            mounted = {Path(text_in(member(one, "hostPath"), "path")) for one in items(member(pod, "spec"), "volumes")}
            named = " ".join(
                (
                    text_in(member(pod, "metadata"), "name"),
                    *(text_in(one, "image") for one in items(member(pod, "spec"), "containers")),
                )
            )
            alive = text_in(member(pod, "status"), "phase") not in ("Succeeded", "Failed")
            if plugins in mounted and ours not in mounted and alive and any(name in named for name in self.words):
                yield f"{text_in(member(pod, 'metadata'), 'namespace')}/{text_in(member(pod, 'metadata'), 'name')}"


def _refusal(error: ClusterError) -> Unavailable | None:
    """What refused a trial; None for what says nothing of admission."""
    if error.status in (400, 403, 422):
        remedy = "name this account in the policy's exemptions (the chart: admissionPolicies.exemptUsers)"
        return Unavailable(text=f"with these credentials: {error.message}", remedy=remedy)
    return None


# -- a support bundle


def versions() -> Mapping[str, str]:
    """Of this program and of what it stands on."""
    system = os.uname()
    return {
        "hami-plugin": __version__,
        "python": platform.python_version(),
        "kernel": system.release,
        "machine": system.machine,
    }


async def daemons_pages(facts: NodeFacts, url: str) -> Mapping[str, bytes | Unavailable]:
    """The daemon's pages as they are."""
    where = facts.daemon.url if isinstance(facts.daemon, DaemonFacts) else url
    if not where:
        return {}
    names = {
        "readyz.json": "readyz",
        "healthz.json": "healthz",
        "config.json": "debug/config",
        "usage.json": "debug/usage",
        "partitions.json": "debug/partitions",
        "metrics.txt": "metrics",
    }
    found = await asyncio.gather(*(_raw_page(where, name) for name in names.values()))
    return dict(zip(names, found, strict=True))


async def _raw_page(url: str, name: str) -> bytes | Unavailable:
    try:
        return await within(PAGE_S + 1, name, lambda: page_text(url, name, timeout=PAGE_S))
    except StuckError:
        return Unavailable(text=f"no answer within {PAGE_S:g} s")
    except HamiError as error:
        return Unavailable.of(error)


async def daemons_files(facts: NodeFacts) -> Mapping[str, bytes | Unavailable]:
    """The CDI specs that bear our names, the end of the journal, and what is in the directories, without contents."""
    folders = [Path(str(one)) for one in facts.effective.get("cdiDirs") or ()]
    state, kubelet = (Path(str(facts.effective.get(key) or "/nowhere")) for key in ("stateDir", "kubeletDir"))
    wanted: dict[str, Callable[[], bytes]] = {
        **{f"listing-{what}.txt": partial(_listing, path) for what, path in (("state", state), ("kubelet", kubelet))},
        **{f"listing-cdi-{number}.txt": partial(_listing, path) for number, path in enumerate(folders)},
        "journal": partial(_end, state / "journal"),
        "health.json": partial(_end, state / "health.json"),
    }
    for folder in folders[-1:]:
        for path in await _named(folder):
            wanted[f"cdi-{path.name}"] = partial(_end, path)
    found = await asyncio.gather(*(_file(name, read) for name, read in wanted.items()))
    return dict(zip(wanted, found, strict=True))


async def _named(folder: Path) -> Sequence[Path]:
    """The specs in a directory that bear our names."""
    try:
        return await within(FILE_S, "specs", lambda: sorted(islice(folder.glob(f"{PREFIX}*"), MAX_SPECS)))
    except (OSError, StuckError):
        return ()


async def _file(name: str, read: Callable[[], bytes]) -> bytes | Unavailable:
    try:
        return await within(FILE_S, name, read)
    except StuckError:
        return Unavailable(text=f"its file system does not answer within {FILE_S:g} s")
    except OSError as error:
        return Unavailable(text=error.strerror or str(error))


def _end(path: Path) -> bytes:
    """How a regular file ends. A link is not followed."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(number, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        file.seek(max(0, found.st_size - MAX_END))
        return file.read(MAX_END)


def _listing(path: Path) -> bytes:
    """Type and mode, size, time and name of each entry."""
    lines = []
    for entry in sorted(islice(path.iterdir(), MAX_SPECS)):
        with suppress(OSError):
            found = entry.lstat()
            when = datetime.fromtimestamp(found.st_mtime, tz=UTC).isoformat(timespec="seconds")
            lines.append(f"{stat.filemode(found.st_mode)} {found.st_size:>10} {when} {entry.name}\n")
    return "".join(lines).encode(errors="replace")
