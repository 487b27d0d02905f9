"""Case w: whose a process is, by the cgroups that a real kubelet and container runtime have made."""

from pathlib import Path

import pytest

from hami_plugin.host.processes import owner_of
from hami_plugin.model.usage import ProcessOwner
from hami_plugin.model.views import pod_view
from tests.realnode.asked import container, manifest
from tests.realnode.processes import pid_of

pytestmark = [
    pytest.mark.full,
    pytest.mark.case("w", "a process is its container's by the cgroup that kubelet and runtime have made"),
]


def test_the_cgroup_of_a_process_names_its_pod_and_its_container(daemon, pods, node):
    name = pods.run(manifest("whose", container("one", count=1, memory=500), container("two", count=1, memory=500)))
    pod = pods.get(name)
    started = {one["name"]: one["containerID"] for one in pod["status"]["containerStatuses"]}

    found = {one: owner_of(Path("/proc"), pid_of(node, started[one])) for one in ("one", "two")}

    ids = {one: text.rpartition("://")[2] for one, text in started.items()}
    assert found == {one: ProcessOwner(pod=pod["metadata"]["uid"], container=ids[one]) for one in ("one", "two")}
    assert pod_view(pod).running == {ids[one]: one for one in ("one", "two")}
