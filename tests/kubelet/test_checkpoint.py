"""The kubelet's own file: which ids a container has, and for whom they were answered."""

import asyncio
import json
import os
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace

import pytest

from hami_plugin.errors import HamiError
from hami_plugin.kubelet.holders import MAX_BYTES, NAME, CheckpointFile
from hami_plugin.kubelet.servicer import allocate_response
from hami_plugin.model.delivery import ANSWERED_FOR, Answer
from hami_plugin.model.ports import CheckpointEntry
from hami_plugin.process.concurrency import cancel

RESOURCE = "example.com/gpu"
KEPT = CheckpointEntry(uid="u", container="init", ids=frozenset({"a", "b"}), answered_for="u/init")
MADE_BY_US = Answer(annotations={ANSWERED_FOR: "u/init", "other": "x"})
OURS = b64encode(allocate_response(MADE_BY_US).SerializeToString()).decode()


def checkpoint(ids, *, resource=RESOURCE, answer=OURS):
    entry = {"PodUID": "u", "ContainerName": "init", "ResourceName": resource, "DeviceIDs": ids, "AllocResp": answer}
    return json.dumps({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {resource: ["a", "b"]}}})


@pytest.mark.parametrize(
    "ids",
    [["a", "b"], {"0": ["a"], "1": ["b"]}, {"0": ["a", "b"], "1": ["b"]}, {"-1": ["b", "a"], "0": None}],
    ids=["before 1.20", "by NUMA node", "at two nodes", "a node without any"],
)
async def test_ids_and_answers_are_read_in_every_format_that_kubelets_write(tmp_path, ids):
    (tmp_path / NAME).write_text(checkpoint(ids))

    assert await CheckpointFile(tmp_path).kept(RESOURCE) == (KEPT,)


async def test_other_resources_do_not_count(tmp_path):
    (tmp_path / NAME).write_text(checkpoint(["a"], resource="example.com/other"))

    assert await CheckpointFile(tmp_path).kept(RESOURCE) == ()


async def test_a_resource_is_known_for_as_long_as_the_kubelet_has_it_registered(tmp_path):
    (tmp_path / NAME).write_text(checkpoint(["a"]))

    assert await CheckpointFile(tmp_path).knows(RESOURCE)
    assert not await CheckpointFile(tmp_path).knows("example.com/other")


async def test_of_all_containers_only_those_with_exactly_the_ids_asked_for_have_their_answers_read(tmp_path):
    entries = [
        {"PodUID": "u", "ContainerName": name, "ResourceName": RESOURCE, "DeviceIDs": ids, "AllocResp": answer}
        for name, ids, answer in [("init", ["a", "b"], OURS), ("one", ["a"], "AAAA"), ("more", ["a", "b", "c"], "AAAA")]
    ]
    (tmp_path / NAME).write_text(json.dumps({"Data": {"PodDeviceEntries": entries}}))

    assert await CheckpointFile(tmp_path).kept(RESOURCE, frozenset({"b", "a"})) == (KEPT,)
    with pytest.raises(HamiError, match="known format"):
        await CheckpointFile(tmp_path).kept(RESOURCE)


async def test_a_kubelet_that_gave_out_nothing_yet_names_nobody(tmp_path):
    (tmp_path / NAME).write_text('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}')

    assert await CheckpointFile(tmp_path).kept(RESOURCE) == ()


@pytest.mark.parametrize("answer", ["", None, b64encode(allocate_response(Answer()).SerializeToString()).decode()])
async def test_an_answer_of_another_plugin_says_nothing_of_whom_it_was_made_for(tmp_path, answer):
    (tmp_path / NAME).write_text(checkpoint(["a", "b"], answer=answer))

    assert await CheckpointFile(tmp_path).kept(RESOURCE) == (replace(KEPT, answered_for=""),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"Data": {"PodDeviceEntries": [{}]}}',
        checkpoint(7),
        checkpoint([], answer="////"),
        "\xff",
        "[" * 100_000,
        '{"Data": ' * 5000,
        checkpoint([7]),
        checkpoint(["a"]).replace('"u"', "[]"),
        checkpoint(["a"]).replace('"init"', "1e999"),
        checkpoint(["a"])[:60],
        pytest.param(" " * (MAX_BYTES + 1), id="too long"),
    ],
)
async def test_a_file_of_another_format_is_told_with_its_place_and_the_way_out(tmp_path, text):
    (tmp_path / NAME).write_text(text, encoding="latin-1")

    with pytest.raises(HamiError, match="not in a known format") as caught:
        await CheckpointFile(tmp_path).kept(RESOURCE)

    assert str(tmp_path / NAME) in str(caught.value)
    assert "identityCheck: off" in str(caught.value)


async def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(HamiError, match="No such file"):
        await CheckpointFile(tmp_path).kept(RESOURCE)


async def test_a_disk_that_hangs_is_given_up_on(tmp_path):
    os.mkfifo(tmp_path / NAME)

    with pytest.raises(HamiError, match="no answer within"):
        await CheckpointFile(tmp_path, timeout=0.01).kept(RESOURCE)
    os.close(os.open(tmp_path / NAME, os.O_RDWR))  # who reads it is let go, where anybody has begun to


def test_a_disk_that_does_not_answer_does_not_keep_the_process(tmp_path):
    os.mkfifo(tmp_path / NAME)
    program = f"""
import asyncio, pathlib
from hami_plugin.errors import HamiError
from hami_plugin.kubelet.holders import CheckpointFile

async def main():
    try:
        await CheckpointFile(pathlib.Path({str(tmp_path)!r}), timeout=0.1).kept("{RESOURCE}")
    except HamiError as error:
        print(error)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)

    assert "no answer within 0.1 s" in done.stdout


async def test_a_long_file_is_read_beside_the_loop(tmp_path):
    entries = json.loads(checkpoint(["a", "b"]))
    entries["Data"]["PodDeviceEntries"] *= 3_000
    (tmp_path / NAME).write_text(json.dumps(entries))
    turns = 0

    async def turning():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(turning())
    kept = await CheckpointFile(tmp_path, timeout=30).kept(RESOURCE)
    await cancel(beside)

    assert kept == (KEPT,) * 3_000
    assert turns > 1
