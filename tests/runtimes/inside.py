"""What a container sees from the inside: its environment, device nodes, mounts, groups and chosen files."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

SCRIPT = Path(__file__).with_name("report.sh").read_text(encoding="utf-8")
OPENED = "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A device node. ``reading`` and ``writing`` are ``yes`` if it could be opened so, else the kernel's reason."""

    block: bool
    major: int
    minor: int
    mode: int
    uid: int
    gid: int
    reading: str
    writing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mount. ``source`` is the path within the file system that it comes from."""

    source: str
    options: frozenset[str]
    filesystem: str

    @property
    def read_only(self) -> bool:
        return "ro" in self.options


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Devices, mounts and files stand under their paths in the container. A file that is not there is missing."""

    env: Mapping[str, str]
    devices: Mapping[str, Node]
    mounts: Mapping[str, Mount]
    groups: frozenset[int]
    files: Mapping[str, bytes] = field(default_factory=dict)

    def beyond(self, bare: Inside) -> Inside:
        """Return what this container has and a ``bare`` one of the same runtime has not, or has otherwise."""
        return replace(
            self,
            env=dict(self.env.items() - bare.env.items()),
            devices={path: node for path, node in self.devices.items() if bare.devices.get(path) != node},
            mounts={path: mount for path, mount in self.mounts.items() if path not in bare.mounts},
            groups=self.groups - bare.groups,
        )


def parse(report: str) -> Inside:
    """Read what the script printed; a report that breaks off is an error, not a container without devices."""
    parts = dict(re.findall(r"^== (\w+)\n(.*?)(?=^== )", report, re.MULTILINE | re.DOTALL))
    if not report.endswith("== end\n"):
        raise ValueError(f"the container's report breaks off: ...{report[-200:]!r}")
    return Inside(
        env=_env(parts["env"]),
        devices=dict(map(_node, parts["devices"].splitlines())),
        mounts=dict(map(_mount, parts["mounts"].splitlines())),
        groups=frozenset(map(int, parts["groups"].split())),
        files=dict(filter(None, map(_file, parts["files"].splitlines()))),
    )


def _env(encoded: str) -> dict[str, str]:
    entries = base64.b64decode(encoded).decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)


def _node(line: str) -> tuple[str, Node]:
    kind, major, minor, mode, uid, gid, reading, writing, path = line.split("|", 8)
    return path, Node(
        block=kind.startswith("block"),
        major=int(major, 16),
        minor=int(minor, 16),
        mode=int(mode, 8),
        uid=int(uid),
        gid=int(gid),
        reading=reading,
        writing=writing,
    )


def _mount(line: str) -> tuple[str, Mount]:
    before, _, after = line.partition(" - ")
    source, target, options = (_unescaped(word) for word in before.split()[3:6])
    return target, Mount(source=source, options=frozenset(options.split(",")), filesystem=after.split()[0])


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def _file(line: str) -> tuple[str, bytes] | None:
    content, _, path = line.partition(" ")
    return None if content == "-" else (path, base64.b64decode(content))
