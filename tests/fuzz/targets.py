"""Every parser of text from outside, each as a function of bytes that raises only where the parser is wrong.

What a parser is allowed to raise is what its caller handles; what it returns must be fit to be used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from cdi.documents import to_json, write
from cdi.errors import CdiError, InjectionError, InvalidNameError
from cdi.inject import inject
from cdi.names import Kind, QualifiedName, annotated
from cdi.registry import SpecFile, registry
from hami_plugin.allocation.allocator import question_of
from hami_plugin.allocation.ledger import Journal, JournalWriter, Ledger
from hami_plugin.cli.fit import inquiry
from hami_plugin.cluster.requests import ApiCall, decode_object, refused_error, retry_after
from hami_plugin.config.load import load
from hami_plugin.errors import ClusterError, ConfigError, DriverUnavailableError, HamiError, WireError
from hami_plugin.host import runtimes
from hami_plugin.host.bounded_yaml import read_yaml
from hami_plugin.host.paths import HostPaths
from hami_plugin.inventory.inventory import HealthMemory
from hami_plugin.kubelet.api import deviceplugin_pb2 as plugin
from hami_plugin.kubelet.api import podresources_pb2 as resources
from hami_plugin.kubelet.holders import holders_of, kept_in
from hami_plugin.kubelet.servicer import allocate_response, answer_of, list_response, offers_of
from hami_plugin.model import views
from hami_plugin.model.views import (
    BriefNode,
    BriefPod,
    NodeView,
    brief_pod_view,
    node_view,
    pod_view,
    quota_view,
    shaped_pod_view,
)
from hami_plugin.protocol import nodes, pods
from hami_plugin.protocol.pods import decided_shares
from hami_plugin.scheduler.engine.admission import Scheduling, review
from hami_plugin.scheduler.extender.payloads import extender_args, require_pod_shape
from hami_plugin.sdk import Driver, Family, load_vendor, pci, tools, vendor_names
from hami_plugin.sdk.tools import ToolError, json_object
from hami_plugin.simulation.hardware import vendor_of
from hami_plugin.simulation.machines import load_machine
from vendors import biren, gaudi, iluvatar, mthreads, vastai
from vendors.awsneuron import driver as awsneuron
from vendors.cambricon import driver as cambricon
from vendors.enflame import driver as enflame
from vendors.hygon import driver as hygon
from vendors.kunlun import driver as kunlun
from vendors.metax import driver as metax
from vendors.nvidia import driver_files, host, rules

Feed = Callable[[bytes], None]
SMI = Path("smi")
NOW = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)


@cache
def folder() -> Path:
    """A folder in memory, of this process."""
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="fuzz-", dir=shared if os.access(shared, os.W_OK) else None))


def text(data: bytes) -> str:
    """Any text that JSON can bring, half pairs among it."""
    return data.decode("utf-8", "surrogateescape")


def written(data: bytes, name: str) -> Path:
    path = folder() / name
    path.write_bytes(data)
    return path


def allowing(*errors: type[Exception]) -> Callable[[Feed], Feed]:
    """Of a target: what its caller handles."""

    def of(feed: Feed) -> Feed:
        def fed(data: bytes) -> None:
            with contextlib.suppress(errors):
                feed(data)

        return fed

    return of


def decoding(
    decode: Callable[[str], Any], encode: Callable[[Any], str], ordered: Callable[[Any], Any] = lambda value: value
) -> Feed:
    """What is read can be written down, and is read again as what it was, in the order in which it is written."""

    def feed(data: bytes) -> None:
        try:
            value = decode(text(data))
        except WireError:
            return
        assert decode(encode(value)) == ordered(value)

    return feed


def in_order(infos: Sequence[nodes.DeviceInfo]) -> tuple[nodes.DeviceInfo, ...]:
    return tuple(sorted(infos, key=lambda info: (info.index, info.id)))


@cache
def families() -> tuple[Family, ...]:
    vendors = (load_vendor(name) for name in vendor_names())
    return tuple(family for vendor in vendors for family in vendor.families(vendor.settings()))


# Annotations


def wire_pods(data: bytes) -> None:
    try:
        pieces = pods.decode_devices(text(data))
    except WireError:
        return
    assert pods.decode_devices(pods.encode_devices(pieces)) == (*pieces, ())
    position = next((position for position, piece in enumerate(pieces) if piece), None)
    if position is not None:
        pods.decode_devices(pods.erase(text(data), position))


def wire_handshake(data: bytes) -> None:
    nodes.is_question(text(data))
    nodes.parse_handshake(text(data))
    nodes.liveness(text(data), now=NOW, allocatable=1)


def wire_lock(data: bytes) -> None:
    nodes.owned_by(text(data), "default", "a")
    decoding(nodes.parse_lock, nodes.render_lock)(data)


@allowing(WireError)
def wire_scores(data: bytes) -> None:
    assert all(type(n) is int for row in nodes.decode_scores(text(data)).values() for n in row.values())


def registers(data: bytes) -> None:
    """One text under every key that a vendor's devices are registered by."""
    said = text(data)
    for family in families():
        keys = [key for key in (family.rules.annotations.register, family.rules.annotations.score) if key]
        node = NodeView(
            name="n", annotations=dict.fromkeys(keys, said), capacity={family.resources.count: said[:64]}, labels={}
        )
        with contextlib.suppress(WireError):
            family.rules.node_devices(node)


def decisions(data: bytes) -> None:
    """One text as every vendor's decision about a pod that asks for all of them, and as what it asks for."""
    said, _, asked = text(data).partition("\0")
    for family in families():
        names = family.resources
        limits = {name: asked or "1" for name in (names.count, names.memory, names.cores) if name}
        pod = pod_view(
            {
                "metadata": {
                    "name": "a",
                    "namespace": "b",
                    "uid": "c",
                    "annotations": dict.fromkeys(
                        key for key in (family.rules.annotations.to_allocate, family.rules.annotations.allocated) if key
                    )
                    and {
                        key: said
                        for key in (family.rules.annotations.to_allocate, family.rules.annotations.allocated)
                        if key
                    },
                },
                "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
            }
        )
        if family.rules.policy:
            family.rules.policy.request(pod.containers[0])
        for units in (None, *family.resources.units):
            with contextlib.suppress(WireError):
                decided_shares(pod, question_of(family, units))


# Objects of the API server


def decoded_json(data: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@allowing(WireError, ValueError)
def objects(data: bytes) -> None:
    value = decoded_json(data)
    if value is not None:
        for view in (pod_view, node_view, quota_view):
            view(value)
        for shape, shaped, view in ((BriefPod, shaped_pod_view, brief_pod_view), (BriefNode, node_view, node_view)):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                assert shaped(msgspec.json.decode(data, type=shape)) == view(value)


def quantities(data: bytes) -> None:
    for read in (views.whole, views.exact):
        try:
            value = read(text(data))
        except ValueError:
            continue
        assert value is None or abs(value) < 2**63 + 1


@allowing(ClusterError)
def replies(data: bytes) -> None:
    call = ApiCall(verb="list", kind="pods", path="/api/v1/pods", name="")
    retry_after({"Retry-After": text(data)})
    str(asyncio.run(refused_error(call, 500, data)))
    asyncio.run(decode_object(call, data))


# The scheduler's requests


@allowing(WireError)
def extender(data: bytes) -> None:
    value = decoded_json(data)
    if value is not None:
        offered = extender_args(value)
        pod_view(offered.pod)


@allowing(WireError)
def webhook(data: bytes) -> None:
    value = decoded_json(data)
    if value is not None:
        require_pod_shape(value, "admission review")
        review(value, families(), Scheduling(name="hami-scheduler"))


# Files of our own, and the kubelet's


def journal(data: bytes) -> None:
    kept = JournalWriter(Journal(written(data, "journal")))
    Ledger(kept).load()


def health(data: bytes) -> None:
    HealthMemory(written(data, "health.json"), "boot").recall("toy")


@allowing(AttributeError, KeyError, TypeError, ValueError, RecursionError, DecodeError)
def checkpoint(data: bytes) -> None:
    tuple(kept_in(data, "toy.io/card"))


@allowing(DecodeError)
def messages(data: bytes) -> None:
    """What the kubelet sends, and what it keeps of what we answered."""
    plugin.AllocateRequest.FromString(data)
    offers = offers_of(plugin.ListAndWatchResponse.FromString(data))
    assert offers_of(list_response(offers)) == offers


@allowing(DecodeError, ValueError)
def answers(data: bytes) -> None:
    # A node's path on the host is written down where it was left out.
    answer = answer_of(allocate_response(answer_of(plugin.ContainerAllocateResponse.FromString(data))))
    assert answer_of(allocate_response(answer)) == answer


@allowing(DecodeError)
def pod_resources(data: bytes) -> None:
    holders_of(resources.ListPodResourcesResponse.FromString(data), "toy.io/card")


# CDI


def cdi_of(name: str, data: bytes) -> None:
    found = registry([SpecFile(path=name, priority=0, text=data.decode("utf-8", "replace"))], yaml=read_yaml)
    for spec in found.specs:
        try:
            again = registry([SpecFile(path="b.json", priority=0, text=to_json(spec.spec, "b.json"))])
        except CdiError:  # what is read but starts no container, which is not written
            continue
        assert [one.spec for one in again.specs] == [spec.spec]
        write(spec.spec, "c.yaml")
    for one in found.names:
        edits = found.resolve([one])
        with contextlib.suppress(InjectionError):
            inject(edits, {"process": {"env": ["A=b"]}, "mounts": []}, _no_node)


def _no_node(path: str) -> Any:
    raise OSError(2, "No such file", path)


def cdi_names(data: bytes) -> None:
    said = text(data)
    for parse in (QualifiedName.parse, Kind.parse, lambda value: annotated({"cdi.k8s.io/a_b": value})):
        with contextlib.suppress(InvalidNameError):
            parse(said)


# Configuration


def configuration(which: str, data: bytes) -> None:
    """Every file as ``which`` of the three, with all vendors' settings."""
    path = written(data, "configuration")
    files: dict[str, Path | None] = {"config": None, "device_config": None, "node_config": None, which: path}
    try:
        load(
            **files,  # type: ignore[arg-type]  # the three by their names
            overrides={"nodeName": "n"},
            environment={},
            vendor_settings=lambda name: load_vendor(name).settings,
            vendor_names=vendor_names(),
        )
    except ConfigError as error:
        str(error).encode()


def environment(data: bytes) -> None:
    said = text(data)
    names = ("NODE_NAME", "HOOK_PATH", "DEVICE_SPLIT_COUNT", "DEVICE_LIST_STRATEGY", "PASS_DEVICE_SPECS")
    try:
        load(
            config=None,
            device_config=None,
            node_config=None,
            overrides={"nodeName": "n"},
            environment=dict.fromkeys(names, said),
            vendor_settings=lambda name: load_vendor(name).settings,
            vendor_names=vendor_names(),
        )
    except ConfigError as error:
        str(error)


@allowing(ConfigError)
def profiles(data: bytes) -> None:
    load_machine(written(data, "profile.yaml"))


@allowing(HamiError)
def manifest(data: bytes) -> None:
    path = written(data, "pod.yaml")
    for read in (inquiry.read_nodes, inquiry.read_pods, inquiry.read_quotas, inquiry.the_pod):
        try:
            read(path)
        except HamiError:
            continue


def container_runtime(name: str, data: bytes) -> None:
    path = written(data, name)
    runtimes.read_runtime([path]).objection(Path("/var/run/cdi"))


# What vendors' tools print


def tool(*parsers: Callable[[str], object]) -> Feed:
    def feed(data: bytes) -> None:
        for parse in parsers:
            try:
                found = parse(data.decode("utf-8", "replace"))
            except (ToolError, ValueError):
                continue
            if isinstance(found, Iterable):
                for one in found:
                    str(one)

    return feed


def cards(parse: Callable[[str], Iterable[object]]) -> Callable[[str], object]:
    return lambda said: list(parse(said))


TOOLS: Mapping[str, Feed] = {
    "awsneuron": tool(awsneuron.parsed),
    "biren": tool(partial(biren.parsed, SMI)),
    "cambricon": tool(cambricon.cards, cambricon.linked_pairs),
    "enflame": tool(cards(enflame.rows), enflame.profiles, enflame.instances),
    "gaudi": tool(
        lambda said: tools.parse_table(said, gaudi.COLUMNS, lambda row: gaudi.card(row, {"0000:4b:00.0": 0}))
    ),
    "hygon": tool(partial(hygon.parsed, SMI)),
    "iluvatar": tool(lambda said: tools.parse_table(said, iluvatar.COLUMNS, iluvatar.card)),
    "kunlun": tool(
        kunlun.parse_names,
        kunlun.direct_links,
        lambda said: [kunlun.card(line, {"0": "GPU-0"}) for line in tools.lines(said) if line.strip()],
        lambda said: [kunlun.load(line) for line in tools.lines(said)],
    ),
    "metax": tool(
        partial(metax.listed_of, memory={}), metax.memory_of, metax.links_of, partial(metax.numbers_of, metax.BUSY)
    ),
    "mthreads": tool(
        partial(mthreads.list_reported, SMI),
        mthreads.bonded_pairs,
        lambda said: [mthreads.in_use(entry) for entry in mthreads.entries(SMI, said)],
    ),
    "vastai": tool(partial(vastai.parsed, SMI)),
    "any": tool(partial(json_object, tool=SMI), partial(tools.matrix, label="GPU")),
}


# Files of the kernel and of drivers


@allowing(ValueError)
def loader_cache(data: bytes) -> None:
    list(driver_files.loader_entries(data))


def mig_minors(data: bytes) -> None:
    (folder() / host.CAPABILITIES).parent.mkdir(parents=True, exist_ok=True)
    written(data, host.CAPABILITIES)
    host.read_capabilities(folder()).nodes(0, 1, 2)


def pci_device(data: bytes) -> None:
    """Each attribute of a function on the bus, parted by NULs."""
    place = folder() / "bus/pci/devices/0000:4b:00.0"
    place.mkdir(parents=True, exist_ok=True)
    names = ("vendor", "device", "class", "numa_node")
    for name, content in zip(names, data.split(b"\0", 3), strict=False):
        (place / name).write_bytes(content)
    pci.look(place)
    pci.scan(folder(), "10de")


@dataclass
class Machine:
    """A simulated machine's driver over a tree of files, any one of which may say anything."""

    driver: Driver
    files: tuple[Path, ...]
    contents: tuple[bytes, ...]

    def feed(self, data: bytes) -> None:
        """The first byte chooses a file, the others are what it says."""
        if not data:
            return
        number = data[0] % len(self.files)
        self.files[number].write_bytes(data[1:])
        try:
            self.driver.discover()
            self.driver.links()
        except DriverUnavailableError as error:
            str(error)
        finally:
            self.files[number].write_bytes(self.contents[number])


@cache
def machine(profile: str, kind: str) -> Machine:
    root = folder() / profile
    described = load_machine(profile)
    vendor = vendor_of(described)
    assert vendor.open
    simulator = vendor.simulate(described, root)
    settings = vendor.settings.model_validate(simulator.settings())
    driver = vendor.open(settings, HostPaths(node="n"))
    driver.discover()
    found = sorted(
        path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and kind in path.as_posix()
    )
    files = tuple(path for path in found if path.stat().st_size)[:200]
    return Machine(driver=driver, files=files, contents=tuple(path.read_bytes() for path in files))


def sysfs(profile: str, kind: str = "/sys/") -> Feed:
    return lambda data: machine(profile, kind).feed(data)


TARGETS: Mapping[str, Feed] = {
    "annotation-decision": decisions,
    "annotation-handshake": wire_handshake,
    "annotation-legacy": decoding(nodes.decode_legacy, nodes.encode_legacy, in_order),
    "annotation-lock": wire_lock,
    "annotation-mig": decoding(rules.decode_mig, rules.encode_mig),
    "annotation-nodes": decoding(nodes.decode_json, nodes.encode_json, in_order),
    "annotation-pods": wire_pods,
    "annotation-registers": registers,
    "annotation-scores": wire_scores,
    "api-objects": objects,
    "api-replies": replies,
    "cdi-json": partial(cdi_of, "a.json"),
    "cdi-names": cdi_names,
    "cdi-yaml": partial(cdi_of, "a.yaml"),
    "checkpoint": checkpoint,
    "config-device": partial(configuration, "device_config"),
    "config-environment": environment,
    "config-node": partial(configuration, "node_config"),
    "config-own": partial(configuration, "config"),
    "extender": extender,
    "health-file": health,
    "journal": journal,
    "kubelet-answers": answers,
    "kubelet-messages": messages,
    "loader-cache": loader_cache,
    "machine-profile": profiles,
    "manifest": manifest,
    "mig-minors": mig_minors,
    "pci": pci_device,
    "pod-resources": pod_resources,
    "quantity": quantities,
    "runtime-containerd": partial(container_runtime, "config.toml"),
    "runtime-crio": partial(container_runtime, "crio.conf"),
    "sysfs-amd": sysfs("mi300x-8"),
    "sysfs-awsneuron": sysfs("aws-trn1-2xlarge"),
    "sysfs-cambricon": sysfs("cambricon-mlu590-8", "information"),
    "sysfs-hygon": sysfs("hygon-z100-4"),
    "webhook": webhook,
    **{f"tool-{name}": feed for name, feed in TOOLS.items()},
}
