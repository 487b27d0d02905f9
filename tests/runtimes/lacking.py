"""What keeps the real runtimes from running on this machine, and how to get it."""

import os
import shutil

from tools.debian.commands import SYSTEM_PATH, LackingError

TOOLS = {
    "apt-get": "a Debian, or another system with Debian's apt",
    "dpkg-deb": "apt-get install dpkg",
    "unshare": "apt-get install util-linux",
    "nsenter": "apt-get install util-linux",
    "pivot_root": "apt-get install util-linux",
    "mount": "apt-get install mount",
    "chroot": "apt-get install coreutils",
}


def check() -> None:
    """Raise for everything that can be seen without trying."""
    lacks = [f"{tool} (try: {remedy})" for tool, remedy in TOOLS.items() if not shutil.which(tool, path=SYSTEM_PATH)]
    if os.geteuid() != 0:
        lacks.append(f"root, for namespaces and mounts: this is uid {os.geteuid()} (try: sudo make test-runtimes)")
    if not os.path.ismount("/sys/fs/cgroup"):
        lacks.append("control groups: nothing is mounted at /sys/fs/cgroup")
    if lacks:
        raise LackingError("the runtimes need " + "; ".join(lacks))
