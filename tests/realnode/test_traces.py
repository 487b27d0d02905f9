"""When the node has ended, the machine is as it was before."""

import pytest

from tests.realnode import traces
from tests.runtimes.enclosure import PREFIX

pytestmark = pytest.mark.case("z", "nothing is left on the machine")


def others(lines, name):
    """Without what bears the name of another enclosure: somebody else may have one at the same time."""
    return {line for line in lines if PREFIX not in line or name in line}


def test_processes_mounts_groups_settings_links_and_files_are_as_before(before, session, installed):
    node, end = session
    name = node.enclosure.name
    during = traces.seen().beyond(before)
    assert any("kubelet" in line for line in during["processes"])
    assert any(name in line for line in during["cgroups"])

    end()

    left = {kind: others(lines, name) for kind, lines in traces.seen().beyond(before).items()}
    assert {kind: lines for kind, lines in left.items() if lines} == {}
