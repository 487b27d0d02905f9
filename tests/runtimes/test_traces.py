"""An enclosure leaves nothing behind, however it ends; and nothing of the machine is seen in it."""

import ctypes
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.runtimes import image
from tests.runtimes.containerd import Containerd
from tests.runtimes.enclosure import cgroups, enclosed
from tests.runtimes.podman import Podman
from tests.runtimes.wanted import Wanted
from tools.debian.commands import LackingError

DEADLINE_S = 20
ROOT = Path(__file__).parents[2]
PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)
SPACES = ("mnt", "pid", "net")


def namespaces(pid):
    return {name: str(Path(f"/proc/{pid}/ns/{name}").readlink()) for name in SPACES}


def processes_in(spaces):
    """Return the processes that are in one of these namespaces."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            here = namespaces(folder.name)
        except OSError:
            continue  # it ended while we looked
        if set(here.items()) & set(spaces.items()):
            found.add(int(folder.name))
    return found


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def await_that(is_over, what, deadline_s=DEADLINE_S):
    deadline = time.monotonic() + deadline_s
    while not is_over():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def traces(name):
    """Return everything outside that bears an enclosure's name."""
    files = {folder / f"{name}.json" for folder in (Path("/etc/cdi"), Path("/run/cdi"))}
    return {
        *(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line),
        *(str(group) for group in cgroups(name)),
        *(str(path) for path in files if path.exists()),
    }


def test_after_containers_of_both_runtimes_nothing_is_left(tree, present):
    with ExitStack() as stack:
        enclosure = present(lambda: stack.enter_context(enclosed(tree)))
        name = enclosure.name
        spaces = namespaces(enclosure.first_pid)
        enclosure.write("/image.tar", image.archive(tree / "bin" / "busybox"))
        enclosure.write(f"/etc/cdi/{name}.json", "{}")
        Podman(enclosure, "/image.tar").run(Wanted())
        with Containerd.serving(enclosure, "/image.tar") as containerd:
            containerd.run(Wanted())
            assert len(processes_in(spaces)) > 2
            assert any("cgroup" in trace for trace in traces(name))

    assert processes_in(spaces) == set()
    assert traces(name) == set()


def test_an_enclosure_ends_with_the_process_that_made_it_even_if_that_is_killed(tree, enclosure):
    program = (
        "import sys, time, pathlib\n"
        "from tests.runtimes.enclosure import enclosed\n"
        "with enclosed(pathlib.Path(sys.argv[1])) as enclosure:\n"
        "    print(enclosure.first_pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # not every init reaps what it inherits
    owner = subprocess.Popen([sys.executable, "-c", program, str(tree)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with owner:
        first = int(owner.stdout.readline())
        spaces, parent = namespaces(first), parent_of(first)
        owner.kill()

    await_that(lambda: not processes_in(spaces), f"processes of {spaces} are still there")
    await_that(lambda: os.waitpid(parent, os.WNOHANG) != (0, 0), f"{parent} has not ended")


def test_the_machine_is_not_seen_inside(enclosure):
    own = namespaces("self")
    theirs = namespaces(enclosure.first_pid)

    processes = enclosure.run("busybox", "ps", deadline_s=DEADLINE_S).stdout
    links = enclosure.run("busybox", "ip", "-o", "link", deadline_s=DEADLINE_S).stdout

    assert not set(own.items()) & set(theirs.items())
    assert " pytest" not in processes
    assert [line.split(":")[1].strip() for line in links.splitlines()] == ["lo"]


def test_a_machine_that_refuses_says_what_it_lacks(tmp_path):
    with pytest.raises(LackingError, match="refuses namespaces"), enclosed(tmp_path / "no tree"):
        pass
