"""Families whose scheduler side reads another text than most, waits for a handshake, or wants to know more."""

from collections.abc import Collection
from dataclasses import replace

import pytest

import hami_plugin.node_status.registration
from hami_plugin.model.device import Health, Snapshot
from hami_plugin.node_status.registration import Rendered, Style, wanted_annotations
from hami_plugin.protocol.nodes import decode_legacy, encode_legacy
from tests.node_status.test_registration import Rig
from tests.support.builders import FAMILY, HANDSHAKE, REGISTER, SCORE, changed, snapshot, uuid
from tests.support.node import until

COUNTED = "toy.io/counted"


def counted(shown: Snapshot, taken: Collection[str]) -> dict[str, str | None]:
    return {COUNTED: str(len(shown.devices) - len(taken)) if shown.devices else None}


DECLARED = changed(FAMILY, annotations=replace(FAMILY.rules.annotations, others=(COUNTED,)))
OLD = changed(DECLARED, encode=encode_legacy, reports=True, announce=counted)


def test_a_familys_own_text_is_written_whatever_the_style():
    text = wanted_annotations(OLD, snapshot(2), Style())[REGISTER]

    assert text
    assert [info.index for info in decode_legacy(text)] == [0, 1]


def test_what_a_family_announces_goes_when_its_devices_are_gone():
    assert wanted_annotations(OLD, snapshot(2), Style())[COUNTED] == "2"
    assert wanted_annotations(OLD, snapshot(2), Style(), {uuid(0)})[COUNTED] == "1"
    assert wanted_annotations(OLD, Snapshot(ready=True), Style()) == dict.fromkeys(
        (REGISTER, SCORE, HANDSHAKE, COUNTED, "hami-plugin.io/refuses-TOY", "hami-plugin.io/unhealthy-TOY")
    )
    assert wanted_annotations(OLD, Snapshot(), Style()) == {}


async def test_a_scheduler_that_waits_for_a_handshake_gets_one_and_the_others_are_left_alone():
    rig = Rig(snapshot(1), families=(OLD,), style=Style(heartbeat=0.02)).attach()
    quiet = Rig(snapshot(1), style=Style(heartbeat=0.02)).attach()

    await until(lambda: len(rig.cluster.writes) > 2)
    await quiet.quiet()

    assert rig.annotations[HANDSHAKE] == "Reported_2026-08-21 10:11:12"
    assert HANDSHAKE not in quiet.annotations
    rig.task.cancel()
    quiet.task.cancel()


async def test_what_is_taken_meanwhile_is_told_at_the_next_beat():
    taken: set[str] = set()
    rig = Rig(snapshot(2), families=(changed(OLD, reports=False),), style=Style(heartbeat=0.02), taken=lambda: taken)
    rig.attach()
    await until(lambda: rig.annotations.get(COUNTED) == "2")

    taken.add(uuid(1))

    await until(lambda: rig.annotations[COUNTED] == "1")
    rig.task.cancel()


@pytest.mark.parametrize("legacy", [False, True], ids=["json", "legacy"])
def test_after_a_fault_the_register_reads_as_if_it_were_written_anew(legacy: bool):
    style, rendered = Style(legacy=legacy), Rendered()
    well = snapshot(3)
    first, second, third = well.devices
    faulty = replace(well, devices=(first, replace(second, health=Health.UNHEALTHY), third))

    texts = [wanted_annotations(FAMILY, shown, style, rendered=rendered)[REGISTER] for shown in (well, faulty, well)]

    assert texts == [wanted_annotations(FAMILY, shown, style)[REGISTER] for shown in (well, faulty, well)]
    assert texts[0] != texts[1]


def test_only_the_entry_of_a_device_that_has_changed_is_written_anew(monkeypatch: pytest.MonkeyPatch):
    rendered, written = Rendered(), []
    entry = hami_plugin.node_status.registration.json_entry
    monkeypatch.setattr(
        hami_plugin.node_status.registration, "json_entry", lambda info: written.append(info.index) or entry(info)
    )
    well = snapshot(3)
    first, second, third = well.devices
    faulty = replace(well, devices=(first, replace(second, health=Health.UNHEALTHY), third))

    for shown in (well, well, faulty):
        wanted_annotations(FAMILY, shown, Style(), rendered=rendered)

    assert written == [0, 1, 2, 1]
