"""Labels of a node as NVIDIA's GPU feature discovery writes them, so that selectors that are in use go on working."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hami_plugin.model.device import Device, Snapshot
from hami_plugin.protocol.labels import described
from vendors.nvidia.instances import TYPE
from vendors.nvidia.settings import NvidiaSettings

DOMAIN: Final = "nvidia.com"
GENERATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"7.0": "volta", "7.5": "turing", "8.9": "ada-lovelace", "8": "ampere", "9": "hopper", "10": "blackwell"}
)
"""By compute capability, else by its first number."""


def labels(settings: NvidiaSettings, snapshot: Snapshot) -> Mapping[str, str]:
    """Of a node's cards, or of their instances where these are served as cards."""
    if not snapshot.devices:
        return {}
    gpu = f"{DOMAIN}/gpu"
    shares = 1 if all(device.place for device in snapshot.devices) else settings.device_split_count
    found = {f"{gpu}.present": "true", **described(gpu, snapshot.devices), f"{gpu}.replicas": str(shares)}
    found |= _compute(snapshot.facts.get("capability", ""))
    found |= _version(f"{DOMAIN}/cuda.driver-version", snapshot.facts.get("driver", ""))
    found |= _version(f"{DOMAIN}/cuda.runtime-version", snapshot.facts.get("cuda", ""))
    if mig := snapshot.facts.get("mig"):
        found[f"{DOMAIN}/mig.capable"] = mig
    if settings.mig_strategy != "none":
        found[f"{DOMAIN}/mig.strategy"] = settings.mig_strategy
    return found


def instance_labels(snapshot: Snapshot) -> Mapping[str, str]:
    """Of instances that are resources of their own (strategy mixed)."""
    profiles: defaultdict[str, list[Device]] = defaultdict(list)
    for device in snapshot.devices:
        profiles[device.family.removeprefix(TYPE)].append(device)
    described_all = (described(f"{DOMAIN}/mig-{profile}", some) for profile, some in profiles.items())
    return {key: text for one in described_all for key, text in one.items()}


def _compute(capability: str) -> dict[str, str]:
    major, dot, minor = capability.partition(".")
    if not dot:
        return {}
    found = {f"{DOMAIN}/gpu.compute.major": major, f"{DOMAIN}/gpu.compute.minor": minor}
    generation = GENERATIONS.get(capability) or GENERATIONS.get("10" if major == "12" else major)
    return found | ({f"{DOMAIN}/gpu.family": generation} if generation else {})


def _version(name: str, version: str) -> dict[str, str]:
    if not version:
        return {}
    parts = zip(("major", "minor", "revision"), version.split("."), strict=False)
    return {f"{name}.full": version, **{f"{name}.{part}": number for part, number in parts}}
