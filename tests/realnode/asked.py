"""What the pods of the cases ask for. Each container tells what it sees when it starts, and then sleeps."""

from collections.abc import Mapping, Sequence

from tests.realnode.api import Object
from tests.runtimes import image, inside

NAMESPACE = "default"
SCHEDULER = "hami-scheduler"
SLEEP = "exec sleep 2147483647"
COUNTS = 'set -e; cd "${CUDA_DEVICE_MEMORY_SHARED_CACHE%/*}"; echo some >used; cd /tmp/vgpulock; echo some >locked'
"""A container that cannot write where HAMi-core does ends with an error."""
LIMITS = {"count": "nvidia.com/gpu", "memory": "nvidia.com/gpumem", "cores": "nvidia.com/gpucores"}


def container(
    name: str = "main", *, then: str = SLEEP, read: Sequence[str] = (), limits: Mapping[str, int] | None = None, **asked
) -> Object:
    """A container with this many devices, MiB of ``memory`` and percent of ``cores``; or with these ``limits``."""
    amounts = {**(limits or {}), **{LIMITS[what]: amount for what, amount in asked.items() if amount}}
    made = {
        "name": name,
        "image": image.PLAIN,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", f"{inside.SCRIPT}\n{then}", "report", *read],
    }
    return {**made, "resources": {"limits": {k: str(v) for k, v in amounts.items()}}} if amounts else made


def manifest(
    name: str,
    *containers: Object,
    inits: Sequence[Object] = (),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec,
) -> Object:
    given = {
        "schedulerName": SCHEDULER,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": list(containers),
        **({"initContainers": list(inits)} if inits else {}),
        **spec,
    }
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "annotations": dict(annotations or {}),
        "labels": dict(labels or {}),
    }
    return {"metadata": metadata, "spec": given}
