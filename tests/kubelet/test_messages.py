import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdi.spec import ContainerEdits, DeviceNode, Mount
from hami_plugin.kubelet.servicer import (
    MAX_LIST,
    OversizedListError,
    allocate_response,
    answer_of,
    largest_split,
    list_response,
    list_size,
    offers_of,
    require_list_fits,
)
from hami_plugin.model.delivery import Answer
from hami_plugin.model.device import replica_ids
from hami_plugin.model.ports import Offer

UUIDS = [f"GPU-e290caca-2f0c-9582-acab-67a142b6{n:04x}" for n in range(8)]

offers = st.lists(
    st.builds(
        Offer,
        id=st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=63),
        healthy=st.booleans(),
        numa=st.none() | st.integers(0, 300),
    ),
    max_size=20,
)


def shares(count, numa=0):
    return [Offer(id=i, healthy=True, numa=numa) for uuid in UUIDS for i in replica_ids(uuid, count)]


@given(offers)
def test_a_list_survives_the_way_to_the_kubelet(sent):
    assert offers_of(list_response(sent)) == tuple(sent)


@given(offers)
def test_the_size_is_that_of_the_message_with_every_device_unhealthy(listed):
    sick = [Offer(id=o.id, healthy=False, numa=o.numa) for o in listed]

    assert list_size(listed) == list_size(sick) == len(list_response(sick).SerializeToString())


def test_a_device_without_a_numa_node_sends_no_topology():
    message = list_response([Offer(id="a", healthy=True), Offer(id="b", healthy=True, numa=0)])

    assert [device.HasField("topology") for device in message.devices] == [False, True]


def test_a_usual_list_fits():
    require_list_fits(shares(1000))


@pytest.mark.scenario("K12")
def test_a_list_that_is_too_long_says_what_would_fit():
    with pytest.raises(OversizedListError) as refused:
        require_list_fits(shares(9000))

    fits = largest_split(dict.fromkeys(UUIDS, 0))
    assert "8 devices with 9000 shares each make a device list of 4." in str(refused.value)
    assert str(refused.value).endswith(f"the largest deviceSplitCount that fits is {fits}")


@pytest.mark.parametrize("numa", [None, 1])
@pytest.mark.parametrize("limit", [MAX_LIST, 5_000, 100])
@pytest.mark.scenario("K12")
def test_the_largest_split_fits_and_one_more_does_not(numa, limit):
    split = largest_split(dict.fromkeys(UUIDS, numa), limit=limit)

    assert list_size(shares(split, numa)) <= limit < list_size(shares(split + 1, numa))


def test_edits_become_the_kubelets_fields_and_back():
    edits = ContainerEdits(
        env={"A": "1"},
        device_nodes=(DeviceNode(path="/dev/x0", host_path="/dev/real", permissions="rwm"),),
        mounts=(Mount(host_path="/host", container_path="/in", read_only=False),),
    )

    answer = Answer(edits=edits, annotations={"cdi.k8s.io/x": "v.com/c=d"}, cdi_devices=("v.com/c=d",))

    message = allocate_response(answer)

    assert dict(message.envs) == {"A": "1"}
    assert message.devices[0].host_path == "/dev/real"
    assert answer_of(message) == answer


def test_a_device_node_without_a_host_path_is_the_same_on_the_host():
    message = allocate_response(Answer(edits=ContainerEdits(device_nodes=(DeviceNode(path="/dev/x0"),))))

    assert message.devices[0].host_path == "/dev/x0"
