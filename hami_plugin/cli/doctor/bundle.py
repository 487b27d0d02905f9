"""What a support bundle holds, out of what was gathered: chosen field by field, cut to a size, and without secrets."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from hami_plugin.cli.doctor.findings import ApiFacts, NodeFacts, Unavailable, items, member, text_in, texts
from hami_plugin.model.views import Json
from hami_plugin.protocol.keys import OWN

MAX_FILE = 1 << 20
MAX_BUNDLE = 16 << 20
CUT = b"\n[cut here]\n"
HAMI = "hami.io/"
NODE_STATUS = ("capacity", "allocatable", "conditions", "nodeInfo")
POD_STATUS = ("phase", "reason", "message", "startTime", "conditions")
NOTES = """\
What hami-plugin has gathered of one node. Nothing of it was sent anywhere.

It has no tokens, keys, certificates, environments, Secrets or ConfigMaps, nor the container runtime's configuration.
Of nodes and pods it has names, states, requested resources, and the annotations of HAMi and of this project. What
looks like a credential in a text is replaced by [removed]. Look through it all the same before you give it away.
"""
_SECRETS = (
    re.compile(rb"()-----BEGIN [A-Z0-9 ]{1,40}-----.*?(?:-----END [A-Z0-9 ]{1,40}-----|\Z)", re.DOTALL),
    re.compile(rb"(?i)((?:bearer|basic) )[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(rb"()eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    re.compile(rb"(://)[^/\s:@]{1,256}:[^/\s@]{1,256}(?=@)"),
    re.compile(rb"""(?i)((?:password|passwd|secret|token|apikey)["']?\s{0,4}[:=]\s{0,4}["']?)[^\s"',;&}]{4,}"""),
)
"""PEM blocks, headers, tokens as JSON Web Tokens are, users in addresses, and assignments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """``pages`` are the daemon's, by name; ``files`` are small files of the daemon's own."""

    facts: NodeFacts
    document: Mapping[str, Any]
    versions: Mapping[str, str]
    pages: Mapping[str, bytes | Unavailable] = field(default_factory=dict)
    files: Mapping[str, bytes | Unavailable] = field(default_factory=dict)


def without_secrets(content: bytes) -> bytes:
    """The text with what looks like a credential replaced."""
    for pattern in _SECRETS:
        content = pattern.sub(rb"\1[removed]", content)
    return content


def packed(gathered: Gathered, name: str) -> bytes:
    """A compressed archive of ``MAX_BUNDLE`` bytes at most before compression, each file of ``MAX_FILE``."""
    target = io.BytesIO()
    left = MAX_BUNDLE
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for path, content in _entries(gathered):
            kept = _cut(without_secrets(content), min(MAX_FILE, left))
            left -= len(kept)
            entry = tarfile.TarInfo(str(PurePosixPath(name) / path))
            entry.size, entry.mode = len(kept), 0o644
            archive.addfile(entry, io.BytesIO(kept))
    return target.getvalue()


def _cut(content: bytes, most: int) -> bytes:
    return content if len(content) <= most else content[: max(0, most - len(CUT))] + CUT[: max(0, most)]


def _entries(gathered: Gathered) -> Iterator[tuple[str, bytes]]:
    facts = gathered.facts
    yield "README.txt", NOTES.encode()
    yield "doctor.json", _json(gathered.document)
    yield "versions.json", _json(gathered.versions)
    yield "configuration.json", _json(facts.effective)
    if isinstance(facts.api, ApiFacts):
        yield "node.json", _json(_node(facts.api.node or {}))
        yield "pods.json", _json([_pod(pod) for pod in facts.api.pods])
    for folder, found in (("daemon", gathered.pages), ("files", gathered.files)):
        for name, content in found.items():
            if isinstance(content, Unavailable):
                yield f"{folder}/{name}.missing.txt", f"{content.text}\n".encode()
            else:
                yield f"{folder}/{name}", content


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n").encode(errors="replace")


def _node(node: Json) -> Json:
    status = member(node, "status")
    return {
        "metadata": _metadata(node),
        "spec": {"unschedulable": member(node, "spec").get("unschedulable", False)},
        "status": {key: status[key] for key in NODE_STATUS if key in status},
    }


def _pod(pod: Json) -> Json:
    """What a decision needs of a pod: no environment, no command, no volume."""
    spec, status = member(pod, "spec"), member(pod, "status")
    return {
        "metadata": _metadata(pod),
        "spec": {
            **{key: text_in(spec, key) for key in ("nodeName", "schedulerName", "runtimeClassName")},
            "initContainers": _containers(spec, "initContainers"),
            "containers": _containers(spec, "containers"),
        },
        "status": {key: status[key] for key in POD_STATUS if key in status},
    }


def _containers(spec: Json, key: str) -> Sequence[Json]:
    return [{"name": text_in(one, "name"), "resources": member(one, "resources")} for one in items(spec, key)]


def _metadata(item: Json) -> Json:
    meta = member(item, "metadata")
    annotations = texts(member(meta, "annotations"))
    return {
        **{key: text_in(meta, key) for key in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")},
        "annotations": {key: text for key, text in annotations.items() if _ours(key)},
    }


def _ours(key: str) -> bool:
    return key.startswith((OWN, HAMI)) or f".{HAMI}" in key
