"""The processes of a node's containers, by the numbers that the machine knows them by."""

from pathlib import Path

from tests.realnode.node import Node


def pid_of(node: Node, container: str) -> int:
    """The process id of a container's first process, as the machine sees it."""
    said = node.run("ctr", "--namespace=k8s.io", "tasks", "ls")
    wanted = container.rpartition("/")[2]
    for line in said.splitlines():
        if wanted and line.startswith(wanted):
            return _outside(node, int(line.split()[1]))
    raise LookupError(f"container {container} has no process")


def _outside(node: Node, inside: int) -> int:
    """The machine's number of the process that is ``inside`` in the node's PID namespace."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            said = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue  # it ended while we looked
        numbers = said["NSpid"].split()
        if len(numbers) >= 2 and int(numbers[1]) == inside and _belongs(node, int(numbers[0])):
            return int(numbers[0])
    raise LookupError(f"process {inside} of the node is gone")


def _belongs(node: Node, pid: int) -> bool:
    """Whether the process descends from the node's first one."""
    seen = pid
    while seen > 1:
        if seen == node.enclosure.first_pid:
            return True
        try:
            seen = int(Path(f"/proc/{seen}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False
