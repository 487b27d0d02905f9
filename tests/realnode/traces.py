"""What a node could leave on the machine: processes, mounts, control groups, kernel settings, links, and files."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

SETTINGS = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)
PLACES = (
    *("/var/lib/kubelet", "/var/lib/etcd", "/var/lib/containerd", "/var/lib/cni", "/var/lib/hami-plugin"),
    *("/var/lib/simulation", "/var/log/pods", "/etc/kubernetes", "/etc/cni", "/etc/cdi", "/run/containerd"),
    *("/run/netns", "/usr/local/vgpu", "/usr/libexec/kubernetes"),
)
PROGRAMS = ("kube", "etcd", "containerd", "runc", "pause", "hami")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Sets of lines; two looks at a machine that nothing was left on are equal."""

    processes: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    settings: frozenset[str]
    links: frozenset[str]
    files: frozenset[str]

    def beyond(self, earlier: "Traces") -> dict[str, frozenset[str]]:
        """Return what is there now and was not, or was otherwise, by kind."""
        found = {f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)}
        return {kind: lines for kind, lines in found.items() if lines}


def seen() -> Traces:
    """Look at the machine now."""
    return Traces(
        processes=frozenset(_processes()),
        mounts=frozenset(line.split(" ", 2)[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        cgroups=frozenset(folder for folder, _, _ in os.walk("/sys/fs/cgroup")),
        settings=frozenset(f"{name}={Path('/proc/sys', name).read_text().strip()}" for name in SETTINGS),
        links=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
        files=frozenset(
            str(path) for place in PLACES if (top := Path(place)).exists() for path in (top, *top.iterdir())
        ),
    )


def _processes() -> Iterator[str]:
    """The programs of a node among all processes, with their ids."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, state = (folder / "comm").read_text().strip(), (folder / "stat").read_text().rpartition(")")[2][1]
        except OSError:
            continue  # it ended while we looked
        if name.startswith(PROGRAMS) and state != "Z":
            yield f"{folder.name} {name}"
