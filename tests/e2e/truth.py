"""What must be true of a node, whatever has happened to it. Read from outside: annotations, files, the kubelet."""

from collections.abc import Iterator
from pathlib import Path

from cdi.spec import ContainerEdits
from hami_plugin.allocation.identity import HeldShare
from hami_plugin.allocation.ledger import Journal, JournalWriter, Ledger
from hami_plugin.demo.node import NODE, SimulatedNode
from hami_plugin.model.views import ContainerView, PodView, pod_view
from hami_plugin.protocol import keys
from hami_plugin.protocol.pods import decode_devices


def grants_of(stage: SimulatedNode, pod: PodView, container: ContainerView):
    """What the scheduler decided for one container, in the order of the devices' numbers."""
    pieces = decode_devices(pod.annotations[stage.family.rules.annotations.allocated])
    order = {device.uuid: device.index for device in stage.hardware.machine.devices}
    return sorted(pieces[pod.containers.index(container)], key=lambda grant: order[grant.uuid])


def difference(stage: SimulatedNode, pod: PodView, container: ContainerView, edits: ContainerEdits) -> str:
    """What a container received that is not its own, or did not receive; empty when all is right."""
    grants = grants_of(stage, pod, container)
    if not grants:
        return f"nothing was asked for, but it has {edits.env}" if edits.env or edits.mounts else ""
    limits = {f"CUDA_DEVICE_MEMORY_LIMIT_{i}": f"{grant.memory}m" for i, grant in enumerate(grants)}
    expected = {
        **limits,
        "CUDA_DEVICE_SM_LIMIT": str(grants[0].cores),
        "NVIDIA_VISIBLE_DEVICES": ",".join(grant.uuid for grant in grants),
    }
    got = {key: value for key, value in edits.env.items() if "_LIMIT" in key or "VISIBLE" in key}
    folders = {Path(mount.host_path).name for mount in edits.mounts if "/containers/" in mount.host_path}
    if got != expected:
        return f"{expected} is its own, but it has {got}"
    if folders != {f"{pod.uid}_{container.name}"}:
        return f"its cache directory is one of {sorted(folders)}"
    return ""


def problems(stage: SimulatedNode) -> list[str]:
    """Everything that is not as it must be once all is quiet."""
    return [*_of_lock(stage), *_of_pods(stage), *_of_journal(stage), *_of_ids(stage)]


def annotation(stage: SimulatedNode, key: str) -> str:
    """One of the node's annotations."""
    return str(stage.api.node(NODE)["metadata"].get("annotations", {}).get(key, ""))


def recorded(stage: SimulatedNode, pod: PodView) -> bool:
    """Whether a pod says that it has all its devices, and the node says that it is done with it."""
    now = pod_view(stage.api.pod(pod.namespace, pod.name))
    left = any(decode_devices(now.annotations[stage.family.rules.annotations.to_allocate]))
    return now.annotations.get(keys.BIND_PHASE) == keys.PHASE_SUCCESS and not left


def journal(stage: SimulatedNode) -> list[HeldShare]:
    """What a daemon that starts now would remember."""
    file = Journal(Path(stage.options["--state-dir"]) / "journal")
    ledger = Ledger(JournalWriter(file))
    ledger.load()
    return list(ledger.held.values())


def _of_lock(stage: SimulatedNode) -> Iterator[str]:
    if lock := annotation(stage, keys.NODE_LOCK):
        yield f"the node lock is still {lock}"


def _of_pods(stage: SimulatedNode) -> Iterator[str]:
    for pod in map(pod_view, stage.api.pods()):
        if pod.phase == "Running" and not recorded(stage, pod):
            yield f"{pod.key} runs, but is not recorded"


def _of_journal(stage: SimulatedNode) -> Iterator[str]:
    living = {pod.uid for pod in map(pod_view, stage.api.pods()) if not pod.terminal}
    for held in journal(stage):
        if held.uid not in living:
            yield f"the journal still has {held.namespace}/{held.pod}, which has ended"


def _of_ids(stage: SimulatedNode) -> Iterator[str]:
    """An id has one owner, at the kubelet as well as in the journal."""
    kubelet = [(slot[0], held.ids) for slot, held in stage.kubelet.ledger.allotments.items()]
    daemon = [(held.uid, held.ids) for held in journal(stage)]
    for source, shares in (("kubelet", kubelet), ("journal", daemon)):
        owners: dict[str, set[str]] = {}
        for uid, ids in shares:
            for device in ids:
                owners.setdefault(device, set()).add(uid)
        yield from (f"{source}: {device} has {len(uids)} owners" for device, uids in owners.items() if len(uids) > 1)
