"""The driver's capabilities: device nodes that open one MIG instance, by the numbers that the kernel lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LIST = "driver/nvidia-caps/mig-minors"
FOLDER = "nvidia-caps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Minor numbers by the names of the kernel's list, such as ``gpu0/gi1/access``."""

    minors: dict[str, int]

    def nodes(self, card: int, gi: int, ci: int) -> tuple[str, ...]:
        """The two nodes of an instance, below ``/dev``; none if one is not listed. ``card`` is a minor number."""
        names = (f"gpu{card}/gi{gi}/access", f"gpu{card}/gi{gi}/ci{ci}/access")
        if any(name not in self.minors for name in names):
            return ()
        return tuple(f"{FOLDER}/nvidia-cap{self.minors[name]}" for name in names)


def read(proc: Path) -> Capabilities:
    """What the kernel lists; nothing where it has no such list, as without cards that have MIG."""
    try:
        text = (proc / LIST).read_text(encoding="ascii", errors="replace")
    except OSError:
        text = ""
    pairs = (line.split() for line in text.splitlines())
    return Capabilities(minors={pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()})
