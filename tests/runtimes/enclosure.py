"""A machine in the machine: mounts, processes, network and devices of its own, gone without a trace when it ends.

Its root is the tree of the installed runtimes under a layer in memory. Every process in it ends with the first
one, and the first one ends when its input does: with this process, however that dies.
"""

import contextlib
import os
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tools.debian.commands import SYSTEM_PATH, LackingError, tool

SCRIPT = Path(__file__).with_name("enclosure.sh")
CGROUPS = Path("/sys/fs/cgroup")
NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc")
ENVIRONMENT = {"PATH": SYSTEM_PATH, "HOME": "/root", "LC_ALL": "C"}
SPOT = "spot"  # beside the tree: an empty directory to mount on, which each enclosure sees for itself
PREFIX = "runtimes-"
START_S, STOP_S = 20, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """``path`` leads into its files from outside, ``run`` and ``running`` run programs in it."""

    name: str
    first_pid: int

    @property
    def cgroup(self) -> str:
        """The parent of the control groups of all containers; it bears the enclosure's name."""
        return f"/{self.name}"

    def path(self, inside: str) -> Path:
        """Return where a path of the enclosure is reached from outside."""
        return Path(f"/proc/{self.first_pid}/root") / inside.lstrip("/")

    def write(self, inside: str, text: str | bytes) -> None:
        """Write a file whole: nobody inside sees a part of it."""
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        partial.write_bytes(text.encode() if isinstance(text, str) else text)
        partial.rename(target)

    def make_node(self, inside: str, major: int, minor: int, *, mode: int = 0o666) -> None:
        """Make a character device. Numbers that no driver has are fine: opening it says "No such device"."""
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(target, 0o020000 | mode, os.makedev(major, minor))
        target.chmod(mode)

    def run(self, *command: str, deadline_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.entering(command), env=ENVIRONMENT, capture_output=True, text=True, timeout=deadline_s, check=False
        )

    @contextlib.contextmanager
    def running(self, *command: str, log: str) -> Iterator[None]:
        """Run a server. Its output goes to the enclosure's file ``log``."""
        with self.path(log).open("wb") as file:
            server = subprocess.Popen(
                self.entering(command), env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        try:
            yield
        finally:
            for child in children(server.pid):
                os.kill(child, signal.SIGTERM)
            _await_end(server)

    def entering(self, command: Sequence[str]) -> list[str]:
        """Return how to run a command in it. No signal is passed on: send them to the ``children`` of this one."""
        return [tool("nsenter"), f"--target={self.first_pid}", *NAMESPACES, "--", *command]


@contextlib.contextmanager
def enclosed(
    tree: Path, *, shown: Path | None = None, machine: Mapping[Path, str] = MappingProxyType({})
) -> Iterator[Enclosure]:
    """Build an enclosure on the programs in ``tree``; raise ``LackingError`` where the machine refuses.

    The directory ``shown`` is seen inside under its own path: what is written on one side is there on the other.
    Directories of the ``machine`` are seen under the paths that are named for them.
    """
    seen = {**({shown.absolute(): str(shown.absolute())} if shown else {}), **machine}
    (tree.parent / SPOT).mkdir(exist_ok=True)
    remove_stale_cgroups()
    name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(3)}"
    with contextlib.ExitStack() as stack:
        stack.callback(remove_cgroups, name)
        outer = subprocess.Popen(
            [
                *(tool("unshare"), *NAMESPACES, "--fork", "--kill-child", "sh", str(SCRIPT), tree.name, SPOT),
                *(str(path) for pair in seen.items() for path in pair),
            ],
            cwd=tree.parent,  # relative paths: a mount's options separate them by signs that a path may have
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        stack.callback(_end, outer)
        _await_ready(outer)
        (first_pid,) = children(outer.pid)
        yield Enclosure(name=name, first_pid=first_pid)


def _await_ready(outer: subprocess.Popen[bytes]) -> None:
    assert outer.stdout is not None
    assert outer.stderr is not None
    ready, _, _ = select.select([outer.stdout], [], [], START_S)
    if ready and outer.stdout.readline() == b"ready\n":
        return
    outer.kill()
    why = outer.stderr.read().decode(errors="replace").strip()
    raise LackingError(
        f"this machine refuses namespaces of its own: {why or f'nothing happened in {START_S} s'}. In a container, "
        "run it with CAP_SYS_ADMIN and a writable /sys/fs/cgroup, or take a virtual machine"
    )


def _end(outer: subprocess.Popen[bytes]) -> None:
    """End an enclosure: its first process ends with its input, and all others with that."""
    for pipe in (outer.stdin, outer.stdout, outer.stderr):
        assert pipe is not None
        pipe.close()
    _await_end(outer)


def _await_end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started; none when it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def cgroups(name: str) -> list[Path]:
    """Return the control groups of this name, deepest first, in every hierarchy."""
    tops = [path for path in (CGROUPS / name, *(CGROUPS.glob(f"*/{name}"))) if path.is_dir()]
    return [Path(folder) for top in tops for folder, _, _ in os.walk(top, topdown=False)]


def remove_stale_cgroups() -> None:
    """Remove what is left of enclosures whose owner was killed: the owner's process id stands in the name."""
    for name in {path.name for pattern in ("", "*/") for path in CGROUPS.glob(f"{pattern}{PREFIX}[0-9]*-*")}:
        if not Path(f"/proc/{name.removeprefix(PREFIX).split('-')[0]}").exists():
            _remove(cgroups(name))


def remove_cgroups(name: str) -> None:
    deadline = time.monotonic() + STOP_S
    while left := cgroups(name):
        _remove(left)
        if time.monotonic() > deadline:
            raise TimeoutError(f"control groups are still in use after {STOP_S} s: {', '.join(map(str, left))}")
        time.sleep(0.02)


def _remove(groups: list[Path]) -> None:
    for group in groups:
        with contextlib.suppress(OSError):  # busy until its last process is gone
            group.rmdir()
