from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.model.views import (
    GROUP_LABEL,
    BriefNode,
    BriefPod,
    ContainerView,
    brief_pod_view,
    node_view,
    pod_view,
    shaped_pod_view,
)

POD: dict[str, Any] = {
    "metadata": {
        "uid": "u-1",
        "namespace": "team",
        "name": "train-0",
        "annotations": {"hami.io/vgpu-node": "n1"},
        "creationTimestamp": "2026-08-21T10:11:12Z",
        "resourceVersion": "42",
    },
    "spec": {
        "nodeName": "n1",
        "schedulerName": "hami-scheduler",
        "initContainers": [
            {"name": "fetch"},
            {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"nvidia.com/gpu": "1"}}},
        ],
        "containers": [
            {
                "name": "main",
                "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "500m"}},
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}, {"name": "C", "value": ""}],
            }
        ],
    },
    "status": {"phase": "Running"},
}


def test_a_pod_lists_its_init_containers_first_as_the_kubelet_allocates():
    pod = pod_view(POD)

    assert [container.name for container in pod.containers] == ["fetch", "proxy", "main"]
    assert [container.init for container in pod.containers] == [True, True, False]
    assert [container.restartable for container in pod.containers] == [False, True, False]


def test_a_pod_keeps_what_decisions_need():
    pod = pod_view(POD)

    assert (pod.key, pod.uid, pod.node, pod.phase) == ("team/train-0", "u-1", "n1", "Running")
    assert (pod.scheduler, pod.resource_version, pod.deleted) == ("hami-scheduler", "42", False)
    assert pod.annotations == {"hami.io/vgpu-node": "n1"}
    assert pod.container("main") is pod.containers[2]
    assert pod.container("other") is None


def test_only_literal_environment_is_seen():
    main = pod_view(POD).container("main")

    assert main
    assert main.env == {"A": "1", "C": ""}


@pytest.mark.parametrize(
    ("limits", "requests", "amount"),
    [
        ({"gpu": "2"}, {}, 2),
        ({}, {"gpu": "3"}, 3),
        ({"gpu": "2"}, {"gpu": "3"}, 2),
        ({"gpu": "2k"}, {}, 2000),
        ({"gpu": "many"}, {}, 0),
        ({}, {}, 0),
    ],
)
def test_a_container_asks_by_its_limits_else_by_its_requests(
    limits: dict[str, str], requests: dict[str, str], amount: int
):
    assert ContainerView(name="c", limits=limits, requests=requests).amount("gpu") == amount


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_is_terminal(phase: str):
    assert pod_view({"status": {"phase": phase}}).terminal
    assert not pod_view(POD).terminal


def test_a_pod_that_is_being_deleted_says_so():
    assert pod_view({"metadata": {"deletionTimestamp": "2026-08-21T10:11:12Z"}}).deleted


def test_an_empty_pod_is_pending_and_nowhere():
    pod = pod_view({})

    assert (pod.key, pod.node, pod.phase, pod.containers) == ("default/", "", "Pending", ())


def test_a_node_keeps_annotations_and_what_is_allocatable():
    node = node_view(
        {
            "metadata": {"name": "n1", "uid": "u", "annotations": {"a": "b"}, "resourceVersion": "7"},
            "status": {"allocatable": {"nvidia.com/gpu": "80"}, "nodeInfo": {"kubeletVersion": "v1.34.4"}},
        }
    )

    assert (node.name, node.uid, node.resource_version) == ("n1", "u", "7")
    assert node.annotations == {"a": "b"}
    assert node.allocatable == {"nvidia.com/gpu": "80"}
    assert node.kubelet == "v1.34.4"
    assert node_view({}).annotations == {}


maps = st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
containers = st.none() | st.lists(
    st.fixed_dictionaries(
        {}, optional={"name": st.text(max_size=3), "resources": st.none() | st.fixed_dictionaries({"limits": maps})}
    ),
    max_size=2,
)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "metadata": st.none() | st.fixed_dictionaries({"annotations": maps}),
            "spec": st.none() | st.fixed_dictionaries({"containers": containers, "initContainers": containers}),
            "status": maps,
        },
    )
)
def test_a_pod_with_holes_is_read_without_error(pod: dict[str, Any]):
    view = pod_view(pod)

    assert all(isinstance(container, ContainerView) for container in view.containers)


WHOLE_POD: dict[str, Any] = {
    "metadata": {
        **POD["metadata"],
        "labels": {GROUP_LABEL: "batch"},
        "deletionTimestamp": "2026-08-21T10:12:12Z",
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {
        **POD["spec"],
        "runtimeClassName": "nvidia",
        "shareProcessNamespace": True,
        "initContainers": [
            {
                "name": "proxy",
                "restartPolicy": "Always",
                "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"cpu": "1"}},
                "securityContext": {"privileged": True},
            }
        ],
        "priority": 7,
    },
    "status": {"phase": "Running", "podIP": "10.0.0.1"},
}
GROUPED = {**WHOLE_POD, "metadata": POD["metadata"], "spec": {"schedulingGroup": {"podGroupName": "gang"}}}
WHOLE_NODE = {
    "metadata": {
        "name": "n1",
        "uid": "u-1",
        "resourceVersion": "7",
        "labels": {"gpu": "on"},
        "annotations": {"hami.io/node-nvidia-register": "[]"},
    },
    "spec": {"podCIDR": "10.0.0.0/24"},
    "status": {
        "capacity": {"nvidia.com/gpu": "8"},
        "allocatable": {"nvidia.com/gpu": "7"},
        "conditions": [{"type": "GpuDegraded", "status": "True", "reason": "Sick", "message": "XID 79"}],
        "images": [{"names": ["a"]}],
        "nodeInfo": {"kubeletVersion": "v1.37.2", "architecture": "amd64"},
    },
}


@pytest.mark.parametrize(
    ("document", "shape", "view"),
    [
        (WHOLE_POD, BriefPod, brief_pod_view),
        (GROUPED, BriefPod, brief_pod_view),
        (WHOLE_NODE, BriefNode, node_view),
    ],
)
def test_a_shape_has_all_that_the_view_reads(document: dict[str, Any], shape: Any, view: Any):
    shaped = msgspec.json.decode(json.dumps(document).encode(), type=shape)

    assert view(shaped) == view(document)
    assert shape is BriefNode or shaped_pod_view(shaped) == view(document)
    assert len(json.dumps(shaped)) < len(json.dumps(document))


LEFT_OUT = {"labels", "claims", "running", "env"}
"""By brief views."""


def test_the_documents_that_shapes_are_tried_with_fill_every_field_of_a_view():
    pod = brief_pod_view(WHOLE_POD)

    for one in (pod, pod.containers[0], node_view(WHOLE_NODE)):
        for field in fields(one):
            default = field.default if field.default_factory is MISSING else field.default_factory()
            assert field.name in LEFT_OUT or getattr(one, field.name) != default, field.name
