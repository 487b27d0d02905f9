"""podman, as a user types it."""

import resource
from collections.abc import Iterator
from pathlib import Path

from tests.runtimes import inside
from tests.runtimes.enclosure import Enclosure
from tests.runtimes.inside import Inside
from tests.runtimes.wanted import RefusedError, Wanted

LOAD_S, RUN_S = 60, 60
REFUSED = (125, 126, 127)  # podman's own exit codes: no container, or none that starts


class Podman:
    """It reads specs from ``/etc/cdi`` and ``/var/run/cdi``, and knows CDI names alone: annotations stay text."""

    def __init__(self, enclosure: Enclosure, *archives: str) -> None:
        self._enclosure = enclosure
        for archive in archives:
            self.load(archive)

    def run(self, wanted: Wanted) -> Inside:
        command = ("/bin/sh", "-c", inside.SCRIPT, "report", *wanted.read)
        done = self._podman("run", *self._options(), *_options_of(wanted), wanted.image, *command, deadline_s=RUN_S)
        if done.returncode in REFUSED:
            raise RefusedError(done.stderr.strip())
        assert done.returncode == 0, f"podman run: {done.returncode}: {done.stderr}"
        return inside.parse(done.stdout)

    def load(self, archive: str) -> None:
        loaded = self._podman("load", "--quiet", "--input", archive, deadline_s=LOAD_S)
        assert loaded.returncode == 0, loaded.stderr

    def command(self, *arguments: str):
        """Run a container of an image to its end, with further options before the image's name."""
        return self._podman("run", *self._options(), *arguments, deadline_s=RUN_S)

    def _options(self) -> tuple[str, ...]:
        return (
            *("--rm", "--network=none", "--hostname=inside", "--pull=never", "--security-opt=apparmor=unconfined"),
            f"--cgroup-parent={self._enclosure.cgroup}",
            # By default podman raises limits, which takes a privilege that root does not have everywhere.
            *(f"--ulimit={name}={soft}:{hard}" for name, soft, hard in _limits()),
        )

    def _podman(self, *arguments: str, deadline_s: float):
        return self._enclosure.run(
            *("podman", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none"),
            *("--runtime=/usr/sbin/runc", *arguments),
            deadline_s=deadline_s,
        )


def _options_of(wanted: Wanted) -> Iterator[str]:
    yield from (f"--device={name}" for name in wanted.cdi)
    yield from (f"--device={node.source}:{node.path}:{node.permissions}" for node in wanted.devices)
    yield from (f"--env={name}={value}" for name, value in wanted.env.items())
    yield from (f"--annotation={name}={value}" for name, value in wanted.annotations.items())
    for mount in wanted.mounts:
        yield f"--volume={mount.host_path}:{mount.container_path}:{'ro' if mount.read_only else 'rw'},rbind"


def _limits() -> Iterator[tuple[str, int, int]]:
    """Yield the limits of this process, no higher than podman itself may lower them to."""
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    for name, number, cap in (("nofile", resource.RLIMIT_NOFILE, 1 << 20), ("nproc", resource.RLIMIT_NPROC, most)):
        soft, hard = (
            cap if limit == resource.RLIM_INFINITY else min(limit, cap) for limit in resource.getrlimit(number)
        )
        yield name, soft, hard
