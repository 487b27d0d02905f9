"""What the lock files pin: each distribution's version, and how many of its files are known by their hashes."""

import re
from pathlib import Path
from typing import NamedTuple

ENTRY = re.compile(r"^([\w.-]+)==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE)


class Pin(NamedTuple):
    version: str
    hashes: int


def named(requirement: str) -> str:
    """The distribution that a requirement names, as pip compares names; empty where it is for an extra only."""
    name = re.match(r"[\w.-]+", requirement)
    return "" if name is None or "extra ==" in requirement else re.sub(r"[-_.]+", "-", name[0]).lower()


def pins(lock: Path) -> dict[str, Pin]:
    found = ENTRY.findall(lock.read_text(encoding="utf-8"))
    return {named(name): Pin(version, hashes.count("--hash")) for name, version, hashes in found}
