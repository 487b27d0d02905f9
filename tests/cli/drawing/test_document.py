from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace

from hami_plugin.cli.tables import snapshot_json
from hami_plugin.model.device import Device, Health, Snapshot

Profile = Callable[[str], Snapshot]


def test_a_snapshot_is_told_whole(snapshot: Profile):
    machine = snapshot("dgx-1v")

    told = json.loads(snapshot_json(machine))

    assert told["ready"] is True
    assert told["facts"] == {"driver": "570.1"}
    assert len(told["devices"]) == 8
    assert len(told["links"]) == 28
    assert told["links"][0] == {
        "a": machine.devices[0].uuid,
        "b": machine.devices[1].uuid,
        "score": 150,
        "label": "NV1",
        "level": "PIX",
        "lanes": 1,
    }
    assert told["asymmetric"] == told["problems"] == []


def test_every_field_of_a_device_but_the_vendors_traits_is_told(snapshot: Profile):
    machine = snapshot("dgx-h100")
    device = replace(machine.devices[0], health=Health.SUSPECT, reason="Slow", message="é", traits=object())

    [told] = json.loads(snapshot_json(Snapshot(devices=(device,))))["devices"]

    assert told.keys() == {field.name for field in fields(Device)} - {"traits"} | {"offered"}
    assert all(told[field.name] == getattr(device, field.name) for field in fields(Device) if field.name != "traits")
    assert told["offered"] is True


def test_a_snapshot_before_the_first_look_is_told_too():
    assert json.loads(snapshot_json(Snapshot()))["reason"] == "NotLookedYet"


def test_equal_snapshots_are_told_in_the_same_words(snapshot: Profile):
    assert snapshot_json(snapshot("dgx-2")) == snapshot_json(snapshot("dgx-2"))
