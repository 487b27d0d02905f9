"""Between a spec and plain values: mappings, lists, texts and numbers, as they stand in a JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdi.edits import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount
from cdi.errors import InvalidNameError
from cdi.names import Kind
from cdi.spec import Spec, SpecDevice
from cdi.version import least_version

_NODE = {
    "path": "path",
    "hostPath": "host_path",
    "type": "type",
    "major": "major",
    "minor": "minor",
    "fileMode": "file_mode",
    "permissions": "permissions",
    "uid": "uid",
    "gid": "gid",
}
_INTEL_RDT = {
    "closID": "clos_id",
    "l3CacheSchema": "l3_cache_schema",
    "memBwSchema": "mem_bw_schema",
    "enableCMT": "enable_cmt",
    "enableMBM": "enable_mbm",
}


def plain_spec(spec: Spec) -> dict[str, Any]:
    """The document of ``spec``, with the least version. What is empty or absent is left out."""
    document = {
        "kind": str(spec.kind),
        **_present(annotations=dict(spec.annotations), containerEdits=plain_edits(spec.edits)),
        "devices": [
            {
                "name": device.name,
                **_present(annotations=dict(device.annotations)),
                "containerEdits": plain_edits(device.edits),
            }
            for device in spec.devices
        ],
    }
    return {"cdiVersion": least_version(document), **document}


def plain_edits(edits: ContainerEdits) -> dict[str, Any]:
    rdt = edits.intel_rdt
    return {
        **_present(
            env=[_variable(name, value) for name, value in edits.env.items()],
            deviceNodes=[_present(**_renamed(node, _NODE)) for node in edits.device_nodes],
            mounts=[_plain_mount(mount) for mount in edits.mounts],
            hooks=[_plain_hook(hook) for hook in edits.hooks],
            additionalGids=list(edits.additional_gids),
        ),
        **({} if rdt is None else {"intelRdt": {k: v for k, v in _renamed(rdt, _INTEL_RDT).items() if v}}),
    }


def spec_of(document: Mapping[str, Any]) -> Spec:
    """The spec of a document that the validator has accepted."""
    return Spec(
        kind=Kind.parse(document["kind"]),
        annotations=dict(document.get("annotations") or {}),
        edits=edits_of(document.get("containerEdits")),
        devices=tuple(
            SpecDevice(
                name=device["name"],
                annotations=dict(device.get("annotations") or {}),
                edits=edits_of(device["containerEdits"]),
            )
            for device in document["devices"]
        ),
    )


def edits_of(document: Mapping[str, Any] | None) -> ContainerEdits:
    if document is None:
        return ContainerEdits()
    rdt = document.get("intelRdt")
    return ContainerEdits(
        env=dict(_split(variable) for variable in document.get("env") or ()),
        device_nodes=tuple(
            # In a document the absence of permissions means all of them.
            DeviceNode(**{"permissions": "", **_named(node, _NODE)})
            for node in document.get("deviceNodes") or ()
        ),
        mounts=tuple(_mount_of(mount) for mount in document.get("mounts") or ()),
        hooks=tuple(_hook_of(hook) for hook in document.get("hooks") or ()),
        additional_gids=tuple(document.get("additionalGids") or ()),
        intel_rdt=None if rdt is None else IntelRdt(**_named(rdt, _INTEL_RDT)),
    )


def _plain_mount(mount: Mount) -> dict[str, Any]:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        **_present(options=[*(["ro"] if mount.read_only else []), *mount.options], type=mount.type),
    }


def _mount_of(document: Mapping[str, Any]) -> Mount:
    options = document.get("options") or ()
    access = [option for option in options if option in ("ro", "rw")]
    return Mount(
        host_path=document["hostPath"],
        container_path=document["containerPath"],
        read_only=access[-1:] == ["ro"],
        options=tuple(option for option in options if option not in ("ro", "rw")),
        type=document.get("type") or "",
    )


def _plain_hook(hook: Hook) -> dict[str, Any]:
    required = {"hookName": hook.name, "path": hook.path}
    return {**required, **_present(args=list(hook.args), env=list(hook.env), timeout=hook.timeout_s)}


def _hook_of(document: Mapping[str, Any]) -> Hook:
    return Hook(
        name=document["hookName"],
        path=document["path"],
        args=tuple(document.get("args") or ()),
        env=tuple(document.get("env") or ()),
        timeout_s=document.get("timeout"),
    )


def _present(**values: object) -> dict[str, Any]:
    """Without what is empty. Zero is not: a device may have minor 0."""
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}


def _renamed(value: object, names: Mapping[str, str]) -> dict[str, Any]:
    return {theirs: getattr(value, ours) for theirs, ours in names.items()}


def _named(document: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names[theirs]: value for theirs, value in document.items() if value is not None}


def _variable(name: str, value: str) -> str:
    if "=" in name:
        raise InvalidNameError(f'variable "{name}" has "=" in its name')
    return f"{name}={value}"


def _split(variable: str) -> tuple[str, str]:
    name, _, value = variable.partition("=")
    return name, value
