"""The document of a node's state: links of present devices only, Events with the newest first."""

from __future__ import annotations

from hami_plugin.model.device import Device, Link, Links, Snapshot
from hami_plugin.node_status.events import EventRecorder, events_of
from hami_plugin.node_status.status import MAX_PAIRS, _pairs


class Nobody:
    async def create_event(self, *_arguments: object, **_more: object) -> None:
        raise AssertionError


def devices(count: int) -> dict[str, Device]:
    return {f"u{n:02}": Device(uuid=f"u{n:02}", family="F", index=n, model="M", memory=1) for n in range(count)}


def test_links_name_devices_by_number_and_leave_out_those_that_are_gone() -> None:
    pairs = {("u00", "u01"): Link(score=5, label="A"), ("u01", "u02"): Link(score=9, label="B")}

    assert _pairs(Links(pairs=pairs), devices(3)) == [
        {"a": "1", "b": "2", "label": "B", "score": 9},
        {"a": "0", "b": "1", "label": "A", "score": 5},
    ]
    assert len(_pairs(Links(pairs=pairs), devices(2))) == 1
    assert Snapshot().links.pairs == {}
    assert MAX_PAIRS > 35 * 34 // 2


def test_recent_events_are_bounded_without_repeats_and_newest_first() -> None:
    recorder = EventRecorder(Nobody(), "n1")
    for number in range(EventRecorder.MAX_RECENT + 5):
        recorder.node("Reason", f"message {number}")
    recorder.node("Reason", "message 54")

    shown = events_of(recorder.recent)

    assert len(shown) == EventRecorder.MAX_RECENT
    assert [shown[0]["message"], shown[1]["message"]] == ["message 54", "message 53"]
    assert (shown[0]["about"], shown[0]["kind"], shown[0]["warning"]) == ("n1", "Node", True)
