"""The simulated kubelet aligns devices as the real one's topology manager does."""

import pytest

from hami_plugin.simulation.kubelet import Affinity, Hint, hints, merged

TWO = frozenset({0, 1})
LISTED = {f"{node}-{n}": node for node in TWO for n in range(4)}


def on(*nodes, preferred=True):
    return Hint(nodes=frozenset(nodes), preferred=preferred)


def free(*, node0, node1):
    return {f"0-{n}" for n in range(node0)} | {f"1-{n}" for n in range(node1)}


@pytest.mark.parametrize(
    ("ids", "count", "expected"),
    [
        pytest.param(free(node0=4, node1=4), 2, [on(0), on(1), on(0, 1, preferred=False)], id="room everywhere"),
        pytest.param(free(node0=1, node1=4), 2, [on(1), on(0, 1, preferred=False)], id="room at one node"),
        pytest.param(free(node0=2, node1=2), 3, [on(0, 1, preferred=False)], id="one node had had the room"),
        pytest.param(free(node0=4, node1=4), 5, [on(0, 1)], id="more than one node ever has"),
        pytest.param(free(node0=1, node1=1), 3, [], id="too few"),
    ],
)
def test_each_set_of_nodes_that_has_the_room_is_a_hint_and_the_smallest_that_ever_had_is_preferred(
    ids, count, expected
):
    assert hints(LISTED, ids, count, TWO) == expected


def test_ids_without_any_node_give_no_hint():
    assert hints(dict.fromkeys(LISTED), LISTED, 2, TWO) is None


def test_a_node_that_the_machine_does_not_have_is_left_out():
    assert hints(LISTED, LISTED, 2, frozenset({0})) == [on(0)]


ANYWHERE = [on(0), on(1), on(0, 1, preferred=False)]


@pytest.mark.parametrize(
    ("wishes", "policy", "nodes", "admitted"),
    [
        pytest.param([ANYWHERE], "none", None, True, id="nobody asks"),
        pytest.param([ANYWHERE], "best-effort", {0}, True, id="the lowest node"),
        pytest.param([ANYWHERE, [on(1)]], "best-effort", {1}, True, id="the node that has the CPU"),
        pytest.param([ANYWHERE, None], "restricted", {0}, True, id="a resource that does not care"),
        pytest.param([None], "single-numa-node", None, True, id="nobody cares"),
        pytest.param([[on(0, 1, preferred=False)]], "best-effort", {0, 1}, True, id="scattered, at best effort"),
        pytest.param([[on(0, 1, preferred=False)]], "restricted", {0, 1}, False, id="scattered, though one node had"),
        pytest.param([[on(0, 1)]], "restricted", {0, 1}, True, id="more than one node ever has"),
        pytest.param([[on(0, 1)]], "single-numa-node", None, False, id="never at one node"),
        pytest.param([[on(0)], [on(1)]], "single-numa-node", None, False, id="device here, CPU there"),
        pytest.param([[on(0)], []], "restricted", None, False, id="one resource has too few"),
    ],
)
def test_the_policy_decides_what_becomes_of_the_best_intersection(wishes, policy, nodes, admitted):
    expected = Affinity(nodes=None if nodes is None else frozenset(nodes), admitted=admitted)

    assert merged(wishes, TWO, policy) == expected
