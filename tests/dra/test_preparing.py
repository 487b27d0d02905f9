"""Claims made ready and released: the same each time, never twice the same device, and nothing left behind."""

import asyncio
import json
from dataclasses import replace

import pytest

from cdi.errors import StoreError
from hami_plugin.dra.claims import ClaimError
from hami_plugin.dra.preparing import PreparingTiming
from hami_plugin.dra.slices import MEMORY
from hami_plugin.model.device import Health, Snapshot, physical_counts
from hami_plugin.node_status.occupancy import device_occupancy
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.sdk import Parameter, Parameters
from tests.dra.node import BY_CDI, DRIVER, Claims, given
from tests.support.builders import CARD_MIB, COUNT, changed, snapshot, uuid


@pytest.fixture
def claims(tmp_path):
    return Claims(tmp_path)


async def refused(claims, ref):
    answer = (await claims.prepare(ref))[ref.uid]
    assert isinstance(answer, ClaimError), answer
    assert claims.prepared.get(DRIVER, ref.uid) is None
    assert claims.files() == []
    return str(answer)


async def test_a_container_gets_what_was_consumed_and_the_same_again_without_the_api_server(claims):
    ref = claims.claim("a", given(1, memory="3000Mi", cores="30"))

    names = await claims.names(ref)

    assert names == [f"{DRIVER}/claim=uid-a-gpu", f"hami.io/toy={uuid(1)}"]
    assert claims.limits(names) == {"POD": "0-a", "CONTAINER": "main", "DEVICES": uuid(1), "LIMIT_0": "3000m,30"}
    (spec,) = claims.specs.iterdir()
    text = spec.read_bytes()
    claims.api.down = True
    spec.unlink()
    assert await claims.names(ref) == names
    assert spec.read_bytes() == text
    assert (claims.root / "hook" / "containers" / "0-a_main").is_dir()


async def test_a_claim_survives_a_kill_a_reboot_and_a_wiped_directory(claims):
    ref = claims.claim("a", given(1))
    names = await claims.names(ref)
    for path in claims.specs.iterdir():
        path.unlink()
    (claims.specs / f"hami-claim_{DRIVER}_uid-gone.json").write_text("{}")

    other = claims.again()
    await other.preparer.restore()

    assert other.files() == [f"hami-claim_{DRIVER}_uid-a.json"]
    other.api.down = True
    assert await other.names(ref) == names


async def test_devices_that_are_not_known_yet_are_waited_for(tmp_path):
    """The kubelet asks as soon as a daemon has registered itself."""
    claims = Claims(tmp_path, timing=PreparingTiming(release=30.0))
    ref = claims.claim("a", given(1))
    listed = claims.node.snapshot.value
    claims.node.snapshot.set(Snapshot())
    waiting = asyncio.create_task(claims.prepare(ref))
    while not claims.api.reads:  # noqa: ASYNC110  # it has read the claim, and waits
        await asyncio.sleep(0)

    claims.node.snapshot.set(listed)

    answer = (await waiting)[ref.uid]
    assert not isinstance(answer, ClaimError), answer


async def test_a_prepared_claim_is_answered_once_the_devices_own_specs_are_there(tmp_path):
    """A reboot has taken these away too, and a container that started before would find no device."""
    claims = Claims(tmp_path, timing=PreparingTiming(release=30.0))
    ref = claims.claim("a", given(1))
    await claims.names(ref)
    listed = claims.node.snapshot.value
    claims.node.snapshot.set(Snapshot())
    waiting = asyncio.create_task(claims.prepare(ref))
    await claims.node.snapshot.changed(claims.node.snapshot.version, timeout=0.05)
    assert not waiting.done()

    claims.node.snapshot.set(listed)

    assert not isinstance((await waiting)[ref.uid], ClaimError)


async def test_a_driver_that_never_answers_keeps_no_prepared_claim_from_being_answered(claims):
    ref = claims.claim("a", given(1))
    names = await claims.names(ref)
    claims.node.snapshot.set(Snapshot())

    assert await claims.names(ref) == names


async def test_devices_that_never_become_known_are_a_refusal(claims):
    claims.node.snapshot.set(Snapshot())

    assert "is not known yet: NotLookedYet" in await refused(claims, claims.claim("a", given(1)))


async def test_a_spec_that_is_taken_away_is_written_again(tmp_path):
    claims = Claims(tmp_path, timing=PreparingTiming(check=0.01))
    await claims.names(claims.claim("a", given(1)))
    before = claims.files()
    task = asyncio.create_task(claims.preparer.run())

    (claims.specs / before[0]).unlink()
    async with asyncio.timeout(30):
        while claims.files() != before:  # noqa: ASYNC110  # files set no event
            await asyncio.sleep(0.01)

    task.cancel()


async def test_an_unprepared_claim_leaves_nothing_and_an_unknown_one_is_released(claims):
    ref = claims.claim("a", given(1))
    await claims.names(ref)

    assert await claims.preparer.unprepare([ref]) == {}
    assert await claims.preparer.unprepare([ref]) == {}

    assert claims.files() == []
    assert claims.prepared.of(DRIVER) == ()
    assert claims.again().prepared.of(DRIVER) == ()


@pytest.mark.parametrize("at", ["intent", "files", "done"])
async def test_a_kill_at_any_step_is_mended_by_the_next_prepare_or_by_the_release(tmp_path, monkeypatch, at):
    """What a killed process had not answered is done anew, and is the same."""
    claims = Claims(tmp_path)
    ref = claims.claim("a", given(1))
    want = await claims.names(ref)
    lines = (tmp_path / "claims").read_text().splitlines()
    assert [json.loads(line)["done"] for line in lines] == [False, True]
    left = {"intent": lines[:1], "files": lines[:1], "done": lines[:2]}[at]
    claims.writer.close()
    (tmp_path / "claims").write_text("".join(f"{line}\n" for line in left))
    if at == "intent":
        for path in claims.specs.iterdir():
            path.unlink()

    other = claims.again()
    await other.preparer.restore()
    assert [one.name for one in other.prepared.of(DRIVER)] == (["a"] if at == "done" else [])
    assert other.files() == (claims.files() if at == "done" else [])
    assert await other.names(ref) == want
    assert other.limits(want)["LIMIT_0"] == "1000m,10"
    assert other.prepared.get(DRIVER, ref.uid).done

    last = other.again()
    assert await last.preparer.unprepare([ref]) == {}
    assert last.files() == []


async def test_a_device_that_is_still_prepared_is_waited_for(tmp_path):
    """After a deletion by force the new pod comes before the old one has ended."""
    claims = Claims(tmp_path, timing=PreparingTiming(release=30.0))
    old, new = (
        claims.claim("old", given(1, slots="4", share="s1")),
        claims.claim("new", given(1, slots="4", share="s2")),
    )
    await claims.names(old)

    waiting = asyncio.create_task(claims.prepare(new))
    while not claims.api.reads > 1:  # noqa: ASYNC110  # it has read the claim, and waits
        await asyncio.sleep(0)
    await claims.preparer.unprepare([old])

    answer = (await waiting)[new.uid]
    assert not isinstance(answer, ClaimError), answer


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ({"memory": f"{CARD_MIB - 500}Mi"}, {"memory": "501Mi"}, f"{CARD_MIB + 1} of {CARD_MIB} {MEMORY}"),
        ({"cores": "60"}, {"cores": "41"}, "101 of 100 cores"),
        ({"slots": "3"}, {"slots": "2"}, "5 of 4 slots"),
    ],
)
async def test_no_more_is_prepared_than_a_device_has(claims, first, second, what):
    await claims.names(claims.claim("first", given(1, **first)))
    ref = claims.claim("second", given(1, share="s2", **second))

    answer = (await claims.prepare(ref))[ref.uid]

    assert what in str(answer)
    assert "team/first" in str(answer)
    assert claims.prepared.get(DRIVER, ref.uid) is None


async def test_what_fits_together_is_prepared_at_the_same_time(claims):
    refs = [claims.claim(f"c{n}", given(1, memory="20000Mi", cores="25", share=f"s{n}")) for n in range(4)]

    answers = await claims.prepare(*refs)

    assert not [one for one in answers.values() if isinstance(one, ClaimError)]
    assert len(claims.files()) == 4


async def test_a_whole_device_is_one_claims_and_has_no_part_to_say(tmp_path):
    claims = Claims(tmp_path, family=changed(BY_CDI, whole_only="nothing holds a container to a part"))
    whole = given(1)
    del whole["shareID"], whole["consumedCapacity"]
    names = await claims.names(claims.claim("first", whole))
    other = claims.claim("second", whole)

    assert claims.limits(names)["LIMIT_0"] == f"{CARD_MIB}m,100"
    assert "still prepared for ResourceClaim team/first" in str((await claims.prepare(other))[other.uid])


async def test_a_device_that_was_given_out_without_a_share_is_whole(claims):
    """An API server without DRAConsumableCapacity knows of no shares, and the scheduler books no amounts."""
    whole = given(1)
    del whole["shareID"], whole["consumedCapacity"]
    names = await claims.names(claims.claim("first", whole))
    other = claims.claim("second", given(1, memory="1Mi", cores="0"))

    assert claims.limits(names)["LIMIT_0"] == f"{CARD_MIB}m,0"
    assert "with what ResourceClaim team/first still has" in str((await claims.prepare(other))[other.uid])


async def test_an_administrator_has_the_card_without_limits_beside_whoever_has_it(claims):
    await claims.names(claims.claim("all", given(1, memory=f"{CARD_MIB}Mi", slots="4")))

    names = await claims.names(claims.claim("admin", given(1, adminAccess=True, share="s2")))

    assert names == [f"hami.io/toy={uuid(1)}"]
    assert len(claims.files()) == 1


async def test_requests_that_each_container_has_together_are_one_list_of_limits(claims):
    results = [given(3, request="b", memory="3Mi", share="s3"), given(2, request="a", memory="2Mi", share="s2")]
    ref = claims.claim("a", *results, containers={"main": ["a", "b"]})

    names = await claims.names(ref)

    assert claims.limits(names)["DEVICES"] == f"{uuid(2)},{uuid(3)}"
    assert claims.limits(names)["LIMIT_0"].startswith("2m")
    assert len([name for name in names if name.startswith(DRIVER)]) == 2
    assert claims.limits(names[:1]) == claims.limits(names)


async def test_containers_with_requests_of_their_own_have_lists_of_their_own(claims):
    results = [given(1, request="a", memory="1Mi", share="s1"), given(1, request="b", memory="2Mi", share="s2")]
    ref = claims.claim("a", *results, containers={"one": ["a"], "two": ["b"], "none": []})

    names = await claims.names(ref)

    found = {claims.limits([name])["CONTAINER"]: claims.limits([name])["LIMIT_0"] for name in names if DRIVER in name}
    assert found == {"one": "1m,10", "two": "2m,10"}


@pytest.mark.parametrize(
    ("results", "containers", "why"),
    [
        ([given(1)], {"one": [""], "two": [""]}, "limits are counted for one container"),
        ([given(1), given(1, share="s2")], {"one": [""]}, "two shares of"),
        (
            [given(1, request="a"), given(2, request="b", share="s2")],
            {"one": ["a", "b"], "two": ["b"]},
            "limits are counted for one container",
        ),
        ([given(1, device="dev-none")], None, "dev-none, which is not on this node"),
        ([given(1, pool="other")], None, "this node's is n1"),
        ([given(1, request="../../x")], None, "no scheduler allocates"),
        ([given(1, shareID="../x")], None, "no scheduler allocates"),
        ([given(1, consumedCapacity={"memory": "much"})], None, "cannot be read"),
        ([given(1, consumedCapacity={})], None, "nothing says how much"),
        ([given(1, driver="other.io")], None, "has 0 devices of"),
    ],
)
async def test_a_claim_that_cannot_be_right_is_refused_with_the_reason(claims, results, containers, why):
    assert why in await refused(claims, claims.claim("a", *results, containers=containers))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"allocation": None}, "is not allocated"),
        ({"reservedFor": []}, "is reserved for no pod"),
        ({"reservedFor": [{"resource": "pods", "uid": "0-other"}]}, "no pod of this node is known"),
    ],
)
async def test_a_claim_that_the_api_server_has_taken_back_is_refused(claims, changes, why):
    assert why in await refused(claims, claims.claim("a", given(1), **changes))


async def test_a_claim_of_the_same_name_is_not_the_one_that_was_asked_about(claims):
    ref = claims.claim("a", given(1))
    claims.api.claims["team", "a"]["metadata"]["uid"] = "uid-other"

    assert "was replaced" in await refused(claims, ref)


async def test_parameters_for_the_driver_are_refused_and_those_for_others_passed_over(claims):
    ref = claims.claim("a", given(1))
    devices = claims.api.claims["team", "a"]["status"]["allocation"]["devices"]
    devices["config"] = [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {"kind": "X"}}}]
    assert f"{DRIVER} knows no parameters" in await refused(claims, ref)

    devices["config"][0]["opaque"]["driver"] = "other.io"
    assert await claims.names(ref)


def said(*, by_class=False, requests=(), **fields):
    """An entry of configuration, as the scheduler copies it into the allocation."""
    parameters = {"apiVersion": f"{DRIVER}/v1", "kind": "DeviceParameters", **fields}
    source = "FromClass" if by_class else "FromClaim"
    return {"source": source, "requests": [*requests], "opaque": {"driver": DRIVER, "parameters": parameters}}


KNOWN = Parameters(
    fields={
        "level": Parameter(variable="LEVEL", values={n: str(n) for n in range(3)}),
        "free": Parameter(variable="FREE", values={True: "yes", False: "no"}, granted=frozenset({True})),
    }
)


@pytest.fixture
def telling(tmp_path):
    """Devices whose vendor knows parameters."""
    return Claims(tmp_path, family=changed(BY_CDI, parameters=KNOWN))


async def asked_with(claims, *config, results=None, **more):
    ref = claims.claim("a", *(results or [given(1)]), **more)
    claims.api.claims["team", "a"]["status"]["allocation"]["devices"]["config"] = list(config)
    return ref


async def test_parameters_are_in_the_container_later_beat_earlier_and_a_claims_its_classs(telling):
    ref = await asked_with(
        telling,
        said(level=0),
        said(level=2),
        said(by_class=True, level=1, free=True),
        said(requests=["other"], level=0),
    )

    found = telling.limits(await telling.names(ref))

    assert (found["LEVEL"], found["FREE"], found["LIMIT_0"]) == ("2", "yes", "1000m,10")


async def test_parameters_of_an_alternative_are_of_the_request_that_was_given_it(telling):
    config = (said(requests=["gpu/big"], level=1), said(requests=["gpu/small"], level=2))
    ref = await asked_with(telling, *config, results=[given(1, request="gpu/small")])

    assert telling.limits(await telling.names(ref))["LEVEL"] == "2"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (said(levels=1), "parameters have levels, which is unknown; there are level, free"),
        (said(level=3), "parameters have level: 3; choose from 0, 1, 2"),
        (said(level="1"), "choose from 0, 1, 2"),
        (said(level=True), "choose from 0, 1, 2"),
        (said(free=True), "free: true, which only a DeviceClass may have"),
        (said(kind="Other"), f"write kind: DeviceParameters and apiVersion: {DRIVER}/v1"),
        (said(apiVersion=f"{DRIVER}/v9"), f"apiVersion: {DRIVER}/v1"),
        ({"opaque": {"driver": DRIVER, "parameters": ["x"]}}, "parameters are no object"),
    ],
    ids=["unknown", "value", "text", "truth", "granted", "kind", "version", "list"],
)
async def test_parameters_that_nobody_knows_are_refused_with_those_that_are(telling, entry, why):
    assert why in await refused(telling, await asked_with(telling, entry))
    assert telling.files() == []


async def test_a_container_whose_requests_say_different_things_is_refused(telling):
    results = [given(1, request="a"), given(2, request="b", share="s2")]
    ref = await asked_with(telling, said(requests=["a"], level=1), results=results, containers={"main": ["a", "b"]})

    assert "whose parameters differ" in await refused(telling, ref)


async def test_containers_that_see_each_others_processes_share_one_limit(claims):
    ref = claims.claim("a", given(1), containers={"one": [""], "two": [""]})
    pod = claims.node.pods.get("0-a")
    claims.node.pods.update(replace(pod, shares_processes=True))

    found = claims.limits(await claims.names(ref))

    assert (found["CONTAINER"], found["LIMIT_0"]) == ("one", "1000m,10")


@pytest.mark.parametrize("state", [Health.UNHEALTHY, Health.PROBATION])
async def test_an_unwell_device_is_given_to_nobody_anew_and_stays_with_who_has_it(claims, state):
    before = claims.claim("before", given(1))
    names = await claims.names(before)
    claims.node.snapshot.set(snapshot(4, d1=state))

    after = claims.claim("after", given(1, share="s2"))
    assert str(state) in str((await claims.prepare(after))[after.uid])
    assert await claims.names(before) == names
    assert await claims.preparer.unprepare([before]) == {}


async def test_a_card_that_a_pod_has_by_the_device_plugin_is_not_given_to_a_claim(claims):
    claims.taken[uuid(1)] = "pod team/other"

    assert "pod team/other has" in await refused(claims, claims.claim("a", given(1)))


async def test_a_host_that_lacks_what_limits_need_refuses_and_then_serves(tmp_path):
    missing = ["no library"]
    claims = Claims(tmp_path, family=changed(BY_CDI, host_problem=lambda _host: missing[0]))
    ref = claims.claim("a", given(1))
    assert "no library" in await refused(claims, ref)

    missing[0] = ""
    assert await claims.names(ref)


async def test_a_disk_that_refuses_leaves_nothing_reserved(claims, monkeypatch):
    ref = claims.claim("a", given(1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(claims.preparer._files._store, "write", full)
    assert "No space left" in await refused(claims, ref)

    monkeypatch.undo()
    assert await claims.names(ref)


async def test_what_cannot_be_released_stays_known_is_told_and_is_released_later(claims, monkeypatch):
    ref = claims.claim("a", given(1))
    names = await claims.names(ref)

    def read_only(*_):
        raise StoreError("read-only file system")

    monkeypatch.setattr(claims.preparer._files._store, "remove_others", read_only)
    answer = await claims.preparer.unprepare([ref])
    assert "read-only file system" in str(answer[ref.uid])
    assert [event[1] for event in await claims.node.told()] == ["ClaimNotReleased"]
    assert await claims.names(ref) == names

    monkeypatch.undo()
    assert await claims.preparer.unprepare([ref]) == {}
    assert claims.files() == []


async def test_a_disk_that_refuses_at_the_start_is_told_and_mended_later(claims, monkeypatch):
    ref = claims.claim("a", given(1))
    await claims.names(ref)
    files = claims.files()
    for path in claims.specs.iterdir():
        path.unlink()
    other = claims.again(timing=PreparingTiming(check=0.01))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(other.preparer._files._store, "write", full)
    await other.preparer.restore()
    assert "No space left" in other.preparer.problem

    monkeypatch.undo()
    task = asyncio.create_task(other.preparer.run())
    async with asyncio.timeout(30):
        while other.files() != files or other.preparer.problem:  # noqa: ASYNC110  # files set no event
            await asyncio.sleep(0.01)
    task.cancel()


async def test_what_containers_have_by_claims_is_shown_as_what_they_have_otherwise(claims):
    await claims.names(claims.claim("a", given(1, memory="3000Mi", slots="2")))

    (held,) = claims.prepared.held()

    assert (held.uid, held.pod, held.container, held.resource) == ("0-a", "a", "main", COUNT)
    assert [(grant.uuid, grant.memory) for grant in held.grants] == [(uuid(1), 3000)]
    assert physical_counts(held.ids) == {uuid(1): 2}
    assert claims.prepared.gave(held)


async def test_containers_with_a_request_each_on_one_card_have_each_their_own_part_of_it(claims):
    results = [given(1, request="a", memory="3000Mi"), given(1, request="b", memory="2000Mi", share="s2")]
    await claims.names(claims.claim("a", *results, containers={"one": ["a"], "two": ["b"]}))

    for prepared in (claims.prepared, claims.again().prepared):
        held = {one.container: one for one in prepared.held()}
        assert {name: [grant.memory for grant in one.grants] for name, one in held.items()} == {
            "one": [3000],
            "two": [2000],
        }
        assert taken(claims, prepared) == (5000, 0.2, 2)


async def test_what_containers_have_together_is_counted_once(claims):
    ref = claims.claim("a", given(1, memory="3000Mi"), containers={"one": [""], "two": [""]})
    claims.node.pods.update(replace(claims.node.pods.get("0-a"), shares_processes=True))
    await claims.names(ref)
    await claims.names(claims.claim("b", given(1, memory="500Mi", share="s2")))

    assert sorted(one.container for one in claims.prepared.held()) == ["main", "one"]
    assert taken(claims, claims.prepared) == (3500, 0.2, 2)


async def test_a_journal_of_before_still_says_which_cards_containers_have(claims):
    await claims.names(claims.claim("a", given(1, memory="3000Mi")))
    path = claims.root / "claims"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["received"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    (held,) = claims.again().prepared.held()
    assert [grant.memory for grant in held.grants] == [3000]


def taken(claims, prepared):
    """MiB, cores and shares of the card that are taken."""
    source = FamilySource(vendor="acme", family=BY_CDI, snapshot=claims.node.snapshot)
    (card,) = (one for one in device_occupancy([source], prepared.held()) if one.device.uuid == uuid(1))
    return round(card.memory_taken), round(card.cores_taken, 6), card.handed


async def test_a_pod_that_is_being_deleted_gets_nothing(claims):
    ref = claims.claim("a", given(1))
    pod = claims.node.pods.named("team", "a")
    claims.node.pods.update(type(pod)(uid=pod.uid, namespace="team", name="a", claims=pod.claims, deleted=True))

    assert "is being deleted" in await refused(claims, ref)


async def test_only_claims_that_nobody_has_are_swept(claims):
    await claims.names(claims.claim("kept", given(1)))
    await claims.names(claims.claim("gone", given(2)))
    await claims.names(claims.claim("unread", given(3)))
    claims.preparer._node = type(claims.preparer._node)(**fields(claims.preparer._node, current=lambda: True))
    for name in ("gone", "unread"):
        claims.node.pods.delete(claims.node.pods.named("team", name))
    del claims.api.claims["team", "gone"]
    claims.api.down = True

    await claims.preparer.sweep()
    assert len(claims.prepared.of(DRIVER)) == 3

    claims.api.down = False
    del claims.api.claims["team", "kept"]  # by force: its pod still runs
    await claims.preparer.sweep()
    assert sorted(one.name for one in claims.prepared.of(DRIVER)) == ["kept"]


def fields(state, **changes):
    return {name: getattr(state, name) for name in type(state).__slots__} | changes


async def test_a_driver_that_is_left_lets_claims_end_and_takes_no_new_ones(claims):
    ref = claims.claim("a", given(1))
    names = await claims.names(ref)

    other = claims.again(accepting=False)
    assert "by the device plugin" in str((await other.prepare(other.claim("b", given(2))))["uid-b"])
    assert await other.names(ref) == names
    assert await other.preparer.unprepare([ref]) == {}


async def test_nothing_is_kept_of_claims_that_have_ended(claims):
    for number in range(50):
        ref = claims.claim(f"c{number}", given(1))
        await claims.names(ref)
        await claims.preparer.unprepare([ref])

    assert dict(claims.preparer._turns) == {}
    assert claims.prepared.of(DRIVER) == ()
    assert json.loads((claims.root / "claims").read_text().splitlines()[-1])["op"] == "drop"
