"""What does a container receive when several edits add up?"""

from hypothesis import given
from hypothesis import strategies as st

from cdi.edits import ContainerEdits, DeviceNode, Mount

paths = st.sampled_from(["/dev/a", "/dev/b", "/dev/c"])
edits = st.builds(
    ContainerEdits,
    env=st.dictionaries(st.sampled_from("AB"), st.sampled_from("12")),
    device_nodes=st.lists(st.builds(DeviceNode, path=paths, host_path=st.just("") | paths)).map(tuple),
    mounts=st.lists(st.builds(Mount, host_path=paths, container_path=paths, read_only=st.booleans())).map(tuple),
)


def test_a_later_value_of_a_variable_wins():
    merged = ContainerEdits(env={"A": "1", "B": "1"}).merged(ContainerEdits(env={"A": "2"}), ContainerEdits())

    assert merged.env == {"A": "2", "B": "1"}


def test_nodes_and_mounts_stay_in_order_and_identical_ones_stay_once():
    a, b = DeviceNode(path="/dev/a"), DeviceNode(path="/dev/b")
    m = Mount(host_path="/x", container_path="/y")
    written = Mount(host_path="/x", container_path="/y", read_only=False)

    merged = ContainerEdits(device_nodes=(b, a), mounts=(m,)).merged(
        ContainerEdits(device_nodes=(a, b), mounts=(m, written))
    )

    assert merged.device_nodes == (b, a)
    assert merged.mounts == (m, written)


def test_a_node_comes_from_the_same_path_unless_the_host_has_another():
    assert DeviceNode(path="/dev/a").source == "/dev/a"
    assert DeviceNode(path="/dev/a", host_path="/host/dev/a").source == "/host/dev/a"


@given(edits, edits, edits)
def test_adding_up_is_associative_and_nothing_is_neutral(a, b, c):
    assert a.merged(b, c) == a.merged(b).merged(c) == a.merged(b.merged(c))
    assert ContainerEdits().merged(a) == a.merged() == a.merged(ContainerEdits())
    assert a.merged(a) == a.merged()
