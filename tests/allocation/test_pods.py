"""Is the table of pods what the API server tells, in the order in which the kubelet sees them?"""

from dataclasses import replace

import pytest

from hami_plugin.allocation.pods import PodTable
from hami_plugin.model.views import NodeView
from hami_plugin.node_status.registration import LiveNode
from tests.support.builders import pod


@pytest.fixture
def gone():
    return []


@pytest.fixture
def table(gone):
    return PodTable(gone.append)


def names(table) -> list[str]:
    return [item.name for item in table.pods]


def created(name, second, **changes):
    return pod(name, created=f"2026-01-01T00:00:{second:02d}Z", **changes)


def test_pods_of_one_list_are_ordered_by_creation_and_later_ones_follow(table):
    table.feed.replace([created("c", 3), created("a", 1), created("b", 2)])
    table.feed.update(created("old but bound late", 0))

    assert names(table) == ["a", "b", "c", "old but bound late"]


def test_a_change_moves_no_pod(table):
    table.feed.replace([created("a", 1), created("b", 2)])
    table.feed.update(created("a", 1, phase="Running"))

    assert names(table) == ["a", "b"]
    assert table.get("a-uid").phase == "Running"


def test_another_list_keeps_the_order_of_those_it_knows_and_tells_who_is_missing(table, gone):
    table.feed.update(created("b", 2))
    table.feed.update(created("a", 1))

    table.feed.replace([created("a", 1), created("b", 2), created("z", 9), created("y", 8)])
    assert names(table) == ["b", "a", "y", "z"]

    table.feed.replace([created("a", 1)])
    assert names(table) == ["a"]
    assert [item.name for item in gone] == ["b", "y", "z"]


def test_a_new_kubelet_finds_them_by_creation_and_within_a_second_by_arrival(table):
    for item in (created("c", 3), created("b", 1), created("a", 1), created("d", 2)):
        table.feed.update(item)

    table.by_creation()

    assert names(table) == ["b", "a", "d", "c"]


def test_pods_that_came_together_within_a_second_share_a_rank_and_others_do_not(table):
    table.feed.replace([created("a", 1), created("b", 1), created("c", 2)])
    table.feed.update(created("d", 2))

    a, b, c, d = (table.ranks[pod.uid] for pod in table.pods)

    assert a == b < c < d


def test_a_new_kubelet_makes_the_order_within_a_second_unsure_again(table):
    for item in (created("a", 1), created("b", 1)):
        table.feed.update(item)
    assert len(set(table.ranks.values())) == 2

    table.by_creation()

    assert len(set(table.ranks.values())) == 1


def test_an_older_version_changes_nothing(table):
    table.feed.update(pod("a", resource_version="10", phase="Running"))

    table.feed.update(pod("a", resource_version="9"))
    table.feed.replace([pod("a", resource_version="9")])

    assert table.get("a-uid").phase == "Running"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_told_and_stays_until_it_is_deleted(table, gone, phase):
    table.feed.update(pod("a", phase=phase))
    assert [item.name for item in gone] == ["a"]
    assert names(table) == ["a"]

    table.feed.delete(pod("a"))
    assert names(table) == []


def test_the_answer_to_a_patch_counts_only_while_the_pod_is_there(table):
    table.feed.update(pod("a", resource_version="1"))
    table.patched(pod("a", resource_version="2", phase="Running"))
    assert table.get("a-uid").phase == "Running"

    table.feed.delete(pod("a"))
    table.patched(pod("a", resource_version="3"))
    assert names(table) == []


def test_a_pod_of_the_same_name_is_another_pod(table):
    table.feed.update(pod("a"))
    table.feed.delete(pod("a"))
    table.feed.update(replace(pod("a"), uid="again"))

    assert table.get("a-uid") is None
    assert table.named("default", "a").uid == "again"
    assert table.named("other", "a") is None


def test_every_change_wakes_and_the_first_list_is_told_apart(table):
    seen = [(table.changes.value, table.changes.version)]
    for change in (
        lambda: table.feed.update(pod("a")),
        lambda: table.feed.replace([]),
        lambda: table.feed.replace([]),
        lambda: table.feed.delete(pod("a")),
    ):
        change()
        seen.append((table.changes.value, table.changes.version))

    assert [value for value, _ in seen] == [False, False, True, True, True]
    assert sorted({version for _, version in seen}) == [version for _, version in seen]


def view(uid="u", version="5", **annotations):
    return NodeView(name="n1", uid=uid, resource_version=version, annotations=annotations)


def test_the_live_node_is_the_newest_view_of_the_present_node():
    live = LiveNode()
    assert live.value is None

    for delivered, shown in [
        (view(version="5"), view(version="5")),
        (view(version="4", old="1"), view(version="5")),
        (view(version="10"), view(version="10")),
        (view("recreated", "2"), view("recreated", "2")),
        (None, None),
        (view(version="1"), view(version="1")),
    ]:
        live.deliver(delivered)
        assert live.value == shown
