"""Fake vendor tools of a simulated machine: scripts that print what the real ones do, hang, or fail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.trees import Tree

OTHERWISE = "otherwise"
"""What a tool is asked that has no output of its own."""
PROGRAM = "# program\n"
"""Output that begins so is Python to be run, with the folder of notes as ``NOTES``."""
_SCRIPT = f"""\
#!{sys.executable} -ISB
import os, sys, time
here = sys.argv[0] + ".says"
if os.path.exists(here + "/hangs"):
    time.sleep(3600)
name = "_".join(sys.argv[1:]).replace(" ", "_").replace("/", "_") or "_"
fails = os.path.exists(here + "/fails")
if not os.path.exists(here + "/" + name) and os.path.exists(here + "/{OTHERWISE}"):
    name = "{OTHERWISE}"
try:
    printed = open(here + ("/fails" if fails else "/" + name), "rb").read()
except OSError as error:
    sys.exit(str(error))
if printed.startswith({PROGRAM.encode()!r}):
    exec(printed, {{"NOTES": sys.argv[0] + ".notes"}})
    sys.exit()
out = sys.stderr if fails else sys.stdout
out.buffer.write(printed)
out.flush()
sys.exit(fails)
"""
"""Python, since the image of the project has no shell."""
UNLISTED, SILENT, LOAD = "unlisted", "silent", "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolState:
    """A machine as its tool sees it, with notes that faults left about devices, by kind and index."""

    machine: Machine
    notes: Mapping[tuple[str, int], str]

    @property
    def listed(self) -> tuple[MachineDevice, ...]:
        """The devices that the tool lists."""
        return tuple(one for one in self.machine.devices if not self.noted(UNLISTED, one))

    def noted(self, what: str, one: MachineDevice) -> bool:
        return (what, one.index) in self.notes

    def note(self, what: str, one: MachineDevice, otherwise: str = "") -> str:
        """The value of a note; ``otherwise`` if there is none, or it is empty."""
        return self.notes.get((what, one.index)) or otherwise

    def load(self, one: MachineDevice) -> tuple[int, int]:
        """Percent of the time in which the device works, and MiB of it in use: the note ``37:1024``."""
        busy, _, used = self.note(LOAD, one, "0:0").partition(":")
        return int(busy), int(used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """``path`` is the tool's place in the tree, ``setting`` the setting that names it to the driver.

    ``says`` has what it prints for each command line, and ``OTHERWISE`` for any other, where it fails without that.
    """

    path: str
    setting: str
    says: Callable[[ToolState], Mapping[str, str]]
    garbled: str = "%$ oops\n"
    complaint: str = "it has not been initialised"

    def install(self, tree: Tree) -> None:
        """Install a working tool."""
        tree.remove(f"{self.path}.says/hangs", f"{self.path}.says/fails")
        tree.write(self.path, _SCRIPT)
        (tree.root / self.path).chmod(0o755)

    def set_output(self, tree: Tree, answers: Mapping[str, str]) -> None:
        """Set its output from now on."""
        for arguments, text in answers.items():
            tree.write(f"{self.path}.says/{arguments.replace(' ', '_').replace('/', '_') or '_'}", text)

    def state(self, tree: Tree, machine: Machine) -> ToolState:
        folder = tree.root / f"{self.path}.notes"
        files = sorted(folder.glob("[!.]*"))  # except files being written
        named = ((file.name.rpartition(".")[::2], file) for file in files)
        return ToolState(
            machine=machine, notes={(what, int(index)): file.read_text("utf-8") for (what, index), file in named}
        )

    def note(self, tree: Tree, what: str, one: MachineDevice, value: str) -> None:
        tree.write(f"{self.path}.notes/{what}.{one.index}", value)

    def forget(self, tree: Tree, one: MachineDevice) -> None:
        """All notes of one device."""
        for file in (tree.root / f"{self.path}.notes").glob(f"*.{one.index}"):
            file.unlink()

    def faults(self, tree: Tree, refresh: Callable[[], None]) -> Mapping[str, Callable[[], None]]:
        """The faults of the tool. ``refresh`` makes it print correct output again."""
        return {
            "tool-gone": lambda: tree.remove(self.path),
            "tool-hangs": lambda: tree.write(f"{self.path}.says/hangs", ""),
            "tool-fails": lambda: tree.write(f"{self.path}.says/fails", f"{self.complaint}\n"),
            "tool-garbled": lambda: self._garble(tree),
            "tool-back": refresh,
        }

    def _garble(self, tree: Tree) -> None:
        for file in (tree.root / f"{self.path}.says").iterdir():
            file.write_text(self.garbled, encoding="utf-8")
