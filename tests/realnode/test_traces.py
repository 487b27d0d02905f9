"""When the node has ended, the machine is as it was before."""

from pathlib import Path

import pytest

from tests.realnode import traces
from tests.runtimes.enclosure import PREFIX

pytestmark = pytest.mark.case("z", "nothing is left on the machine")


def own(lines, name):
    """Without what is somebody else's, who may use the machine at the same time: what bears the name of another
    enclosure, and control groups with processes, as those of the node have ended.
    """
    return {line for line in lines if (PREFIX not in line or name in line) and not is_in_use(Path(line))}


def is_in_use(group):
    """Whether a control group has processes, or had some and is gone by now."""
    if not group.is_relative_to("/sys/fs/cgroup"):
        return False
    try:
        return bool((group / "cgroup.procs").read_text())
    except FileNotFoundError:
        return True


def test_processes_mounts_groups_settings_links_and_files_are_as_before(before, session, installed):
    node, end = session
    name = node.enclosure.name
    during = traces.seen().beyond(before)
    assert any("kubelet" in line for line in during["processes"])
    assert any(name in line for line in during["cgroups"])

    end()

    left = {kind: own(lines, name) for kind, lines in traces.seen().beyond(before).items()}
    assert {kind: lines for kind, lines in left.items() if lines} == {}
