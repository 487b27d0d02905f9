"""Apply edits to a container's OCI configuration, as a runtime does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from posixpath import normpath
from typing import Any, TypeAlias

from cdi.errors import InjectionError
from cdi.spec import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNode:
    """What a device node on the host is: ``c``, ``b`` or ``p``, and its numbers."""

    type: str
    major: int
    minor: int


HostNodes: TypeAlias = Callable[[str], HostNode]
"""Path to node; ``OSError`` or ``ValueError`` where there is none."""


def inject(edits: ContainerEdits, container: Mapping[str, Any], host: HostNodes) -> dict[str, Any]:
    """``container`` (an OCI configuration) with ``edits``. ``host`` tells what the edits leave to the node there.

    ``InjectionError`` when a node is not there, or is of another type than the edits say.
    """
    result: dict[str, Any] = copy.deepcopy(dict(container))
    if edits.env:
        _add_env(result.setdefault("process", {}), edits.env)
    for node in edits.device_nodes:
        _add_node(result, node, host)
    for mount in edits.mounts:
        _replace(result, "mounts", "destination", _oci_mount(mount))
    if edits.mounts:
        # Parents before what lies in them, or they would hide it.
        result["mounts"].sort(key=lambda mount: normpath(mount["destination"]).count("/"))
    for hook in edits.hooks:
        result.setdefault("hooks", {}).setdefault(hook.name, []).append(_oci_hook(hook))
    if edits.intel_rdt is not None:
        result.setdefault("linux", {})["intelRdt"] = _oci_rdt(edits.intel_rdt)
    for gid in edits.additional_gids:
        _add_gid(result, gid)
    return result


def _add_env(process: dict[str, Any], env: Mapping[str, str]) -> None:
    """A variable that the container has keeps its place and takes the new value."""
    variables = dict(entry.partition("=")[::2] for entry in process.get("env", ()))
    process["env"] = [f"{name}={value}" for name, value in {**variables, **env}.items()]


def _add_gid(container: dict[str, Any], gid: int) -> None:
    """Group 0 is never added: that would be more than a device may give."""
    gids = container.setdefault("process", {}).setdefault("user", {}).setdefault("additionalGids", [])
    if gid and gid not in gids:
        gids.append(gid)


def _add_node(container: dict[str, Any], node: DeviceNode, host: HostNodes) -> None:
    actual = _actual(node, host)
    user = container.get("process", {}).get("user", {})
    device: dict[str, Any] = {"path": node.path, "type": actual.type, "major": actual.major, "minor": actual.minor}
    # A node that belongs to nobody belongs to the container's user, unless that is root.
    for name, value in (("fileMode", node.file_mode), ("uid", node.uid), ("gid", node.gid)):
        if (chosen := value if value is not None else user.get(name) or None) is not None:
            device[name] = chosen
    linux = container.setdefault("linux", {})
    _replace(linux, "devices", "path", device)
    if actual.type in ("b", "c"):
        allowed = {"allow": True, "type": actual.type, "major": actual.major, "minor": actual.minor}
        rules = linux.setdefault("resources", {}).setdefault("devices", [])
        rules.append({**allowed, "access": node.permissions or "rwm"})


def _actual(node: DeviceNode, host: HostNodes) -> HostNode:
    """Type and numbers as given, or, where they are not, as the host has them. Major 0 counts as not given."""
    if node.type and (node.major or node.type == "p"):
        return HostNode(type=node.type, major=node.major or 0, minor=node.minor or 0)
    try:
        found = host(node.source)
    except (OSError, ValueError) as error:
        raise InjectionError(f"device {node.path}: no node {node.source} on the host: {error}") from error
    if node.type and node.type != found.type:
        raise InjectionError(f"device {node.path}: {node.source} is of type {found.type}, not {node.type}")
    if node.major:
        return HostNode(type=found.type, major=node.major, minor=node.minor or 0)
    return found


def _replace(where: dict[str, Any], entries: str, key: str, entry: dict[str, Any]) -> None:
    """Add ``entry``; one with the same ``key`` makes way."""
    others = [other for other in where.get(entries, ()) if other.get(key) != entry[key]]
    where[entries] = [*others, entry]


def _oci_mount(mount: Mount) -> dict[str, Any]:
    options = [*(["ro"] if mount.read_only else []), *mount.options]
    return {
        "destination": mount.container_path,
        "source": mount.host_path,
        **({"type": mount.type} if mount.type else {}),
        **({"options": options} if options else {}),
    }


def _oci_hook(hook: Hook) -> dict[str, Any]:
    optional = {"args": list(hook.args), "env": list(hook.env), "timeout": hook.timeout_s}
    return {"path": hook.path, **{name: value for name, value in optional.items() if value}}


def _oci_rdt(rdt: IntelRdt) -> dict[str, Any]:
    return {
        "closID": rdt.clos_id,
        "l3CacheSchema": rdt.l3_cache_schema,
        "memBwSchema": rdt.mem_bw_schema,
        "enableCMT": rdt.enable_cmt,
        "enableMBM": rdt.enable_mbm,
    }
