"""Partitions by claims of each vendor that cuts cards: made at Prepare, and gone after Unprepare."""

from __future__ import annotations

import pytest

from hami_plugin.demo.node import GUARD_S
from hami_plugin.simulation.dra import PrepareError, UnschedulableError
from tests.e2e.claiming import spec_directories
from tests.e2e.cut_vendors import ASCEND, CAMBRICON, CUT_VENDORS, ENFLAME, NVIDIA, amounts, asking
from tests.support.scale import spread


def by(vendor):
    async def build(set_up, tmp_path):
        async with vendor.staged(set_up, spec_directories(tmp_path)) as stage:
            vendor.prepare(stage)
            await stage.start()
            yield stage

    return pytest.fixture(build)


enflame, cambricon, ascend = by(ENFLAME), by(CAMBRICON), by(ASCEND)


def nodes(stage, pod):
    return {one.path: one.source for one in stage.edits(pod).device_nodes}


OWN = {
    "enflame": lambda made, edits: edits.env["TOPS_VISIBLE_DEVICES"] == f"DRS-{made.uuid}",
    "cambricon": lambda made, edits: (
        edits.env["CAMBRICON_DSMLU_PROFILE"] == f"{made.card[-1]}_30_12"
        and f"/dev/cambricon-caps/cap_dev{made.card[-1]}_mi{made.ids['instance']}"
        in {node.path for node in edits.device_nodes}
    ),
    "ascend": lambda made, edits: (
        edits.env["ASCEND_VISIBLE_DEVICES"] == "void"
        and f"/dev/davinci{made.ids['vnpu']}" in {node.path for node in edits.device_nodes}
    ),
}


@pytest.mark.parametrize("vendor", spread([one for one in CUT_VENDORS if one is not NVIDIA]), ids=lambda one: one.name)
async def test_a_partition_is_made_for_a_claim_outlives_the_daemon_and_goes_with_the_claim(vendor, set_up, tmp_path):
    async with vendor.staged(set_up, spec_directories(tmp_path)) as stage:
        vendor.prepare(stage)
        await stage.start()
        assert vendor.there(stage) == ()
        pods = [stage.place(name, request=dict(vendor.asked)) for name in ("a", "b")]
        for pod in pods:
            await stage.kubelet.prepare(pod)

        before = vendor.there(stage)
        assert [one.profile for one in before] == [vendor.part] * 2
        answers = [stage.edits(pod) for pod in pods]
        (first,) = [one for one in before if OWN[vendor.name](one, answers[0])]
        (second,) = [one for one in before if OWN[vendor.name](one, answers[1])]
        assert first != second

        await stage.node.stop_daemon(kill=True)
        for path in stage.directories[-1].iterdir():
            path.unlink()
        await stage.kubelet.restart()
        await stage.start()
        for pod in pods:
            await stage.kubelet.prepare(pod)
        assert [stage.edits(pod) for pod in pods] == answers
        assert vendor.there(stage) == before

        for pod in pods:
            await stage.kubelet.unprepare(pod)
            stage.end(pod)
        await vendor.nothing_left(stage)


@pytest.mark.full
async def test_enflames_cards_have_as_many_slices_by_claims_as_they_have_and_a_container_has_one_partition(enflame):
    pods = [enflame.place(f"p{number}", request=asking("enflame", "3g.24gb")) for number in range(16)]
    with pytest.raises(UnschedulableError):
        enflame.place("more", request=asking("enflame", "1g.8gb"))
    for pod in pods[:2]:
        await enflame.kubelet.prepare(pod)
    assert len({one.card for one in ENFLAME.there(enflame)}) == 1

    # What a claim has given back is free for another profile at once, while the partition is destroyed.
    await enflame.kubelet.unprepare(pods[0])
    enflame.end(pods[0])
    small = enflame.place("small", request=asking("enflame", "2g.16gb"))
    await enflame.kubelet.prepare(small)
    assert sorted(one.profile for one in ENFLAME.there(enflame)) == ["2g.16gb", "3g.24gb"]

    enflame.end(pods[2])
    two = enflame.place("two", request={**asking("enflame", "1g.8gb"), "count": 2})
    with pytest.raises(PrepareError, match=r"granted 2 partitions of cards, and can be told of one; ask for one card"):
        await enflame.kubelet.prepare(two)
    assert sorted(one.profile for one in ENFLAME.there(enflame) if one.profile != "1g.8gb") == ["2g.16gb", "3g.24gb"]


@pytest.mark.full
async def test_an_mlu_is_shared_by_amounts_and_what_others_have_made_of_it_is_not_offered(cambricon):
    big = [cambricon.place(f"big{number}", request=amounts("cambricon", cores="70")) for number in range(8)]
    with pytest.raises(UnschedulableError):
        cambricon.place("more", request=amounts("cambricon", memory="1Gi", cores="20"))
    for pod in big:
        cambricon.end(pod)
    tool = CAMBRICON.tool(cambricon)
    foreign = [tool.create(f"demo-node-cambricon-mlu-{n}", "60%.1024mib", (0, 0), lambda _ids: None) for n in range(7)]
    await cambricon.node.stop_daemon()
    await cambricon.start()
    await cambricon.node.until(
        lambda: [one["capacity"]["cores"]["value"] for one in cambricon.published()] == ["100", *["40"] * 7],
        "what is left of each MLU",
        GUARD_S,
    )
    whole = cambricon.place("whole", request=amounts("cambricon"))
    await cambricon.kubelet.prepare(whole)
    (made,) = [one for one in CAMBRICON.there(cambricon) if one not in foreign]
    assert (made.profile, made.card) == ("100%.98304mib", "demo-node-cambricon-mlu-7")
    with pytest.raises(UnschedulableError):
        cambricon.place("another", request=amounts("cambricon", cores="41"))
    half = cambricon.place("half", request=amounts("cambricon", cores="40", memory="300Mi"))
    await cambricon.kubelet.prepare(half)
    assert {one.profile for one in CAMBRICON.there(cambricon) if one not in foreign} == {
        "100%.98304mib",
        "40%.512mib",
    }


@pytest.mark.full
async def test_an_npu_goes_whole_or_in_templates_and_never_both_and_ai_cpus_count(ascend):
    whole = {"deviceClassName": "ascend.hami.io"}
    first = ascend.place("first", request=asking("ascend", "vir10_3c_32g"))
    await ascend.kubelet.prepare(first)
    (made,) = ASCEND.there(ascend)
    others = [ascend.place(f"w{number}", request=whole) for number in range(7)]
    with pytest.raises(UnschedulableError):
        ascend.place("one-more", request=whole)
    await ascend.kubelet.prepare(others[0])
    assert len([path for path in nodes(ascend, others[0]) if path.startswith("/dev/davinci")]) == 2  # and its manager
    assert ASCEND.there(ascend) == (made,)

    # The NPU is given out whole once nothing is cut of it any more, and nothing is cut of it then.
    await ascend.kubelet.unprepare(first)
    ascend.end(first)
    last = ascend.place("last", request=whole)
    await ascend.kubelet.prepare(last)
    assert ASCEND.there(ascend) == ()
    with pytest.raises(UnschedulableError):
        ascend.place("part", request=asking("ascend", "vir05_1c_16g"))
    for pod in (*others, last):
        ascend.end(pod)
    for number in range(16):  # AI CPUs: 3 and 3 of 7
        ascend.place(f"half{number}", request=asking("ascend", "vir10_3c_32g"))


@pytest.mark.full
async def test_where_the_server_keeps_no_counters_npus_are_given_out_whole_alone(set_up, tmp_path):
    async with ASCEND.staged(set_up, spec_directories(tmp_path)) as stage:
        stage.api.store.counters = False
        await stage.start()
        assert [one["attributes"]["type"]["string"] for one in stage.published()] == ["Ascend910B3"] * 8
        pod = stage.place("whole", request={"deviceClassName": "ascend.hami.io"})
        await stage.kubelet.prepare(pod)
        assert "/dev/davinci0" in nodes(stage, pod)
