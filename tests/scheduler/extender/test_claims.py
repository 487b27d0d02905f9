"""Pods whose limits become ResourceClaims: by the process over HTTP, and what becomes of their templates."""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hami_plugin.dra.conversion import USED, ClaimedAmounts, ClaimVendor
from hami_plugin.errors import ConfigError
from hami_plugin.scheduler.engine.admission import Scheduling
from hami_plugin.scheduler.extender.app import configured
from hami_plugin.scheduler.extender.claiming import ClaimedPods
from hami_plugin.sdk import load_vendor
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.scheduler.extender.test_review import asked, refused
from tests.support.scheduler_process import started
from tests.support.scheduling import CORES, COUNT, HURRY, MEMORY, add_node, manifest, serving, until

DRIVER = "nvidia.hami.io"
TIME = "%Y-%m-%dT%H:%M:%SZ"


def patched(pod, response):
    """The pod as the API server stores it: adds, replacements and removals, as the patch says."""
    stored = json.loads(json.dumps(pod))
    for one in json.loads(base64.b64decode(response["patch"])):
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:]]
        place = stored
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if one["op"] == "remove":
            del place[last]
        else:
            place[last] = one["value"]
    return stored


@pytest.fixture
async def server():
    async with SimulatedApiServer() as server:
        server.create_device_class(DRIVER)
        yield server


@pytest.fixture
def options():
    own = load_vendor("nvidia")
    section = own.settings.model_validate({"deviceListStrategy": ["cdi-cri"], "frontEnd": "dra"})
    vendor = ClaimVendor(name="nvidia", families=tuple(own.families(section)))
    return replace(HURRY, scheduling=Scheduling(name="toy-scheduler"), claim_vendors=(vendor,))


async def taken(server, service, pod):
    """Review the pod, and create it as it is stored."""
    response = (await service.review(asked(pod)))["response"]
    assert response["allowed"], response
    return server.create_pod(patched(pod, response))


async def test_the_process_gives_a_pod_a_claim_in_place_of_its_limits_and_makes_the_template_first(server, tmp_path):
    add_node(server)  # of the other kind: it is not for this pod
    async with started(server, tmp_path, claimVendors=["nvidia"]) as running:
        await running.ready()
        pod = manifest("small", memory=3072, cores=30)
        pod["spec"]["schedulerName"] = "default-scheduler"

        trial = (await running.post("/webhook", asked(pod, dryRun=True)))["response"]
        assert server.claim_templates() == []
        first = (await running.post("/webhook", asked(pod)))["response"]
        again = (await running.post("/webhook", asked({**pod, "metadata": {"generateName": "other-"}})))["response"]

        (template,) = server.claim_templates()
        stored = patched(pod, first)
        assert (trial["allowed"], again["allowed"]) == (True, True)
        assert stored["spec"]["schedulerName"] == "default-scheduler"
        assert stored["spec"]["resourceClaims"] == [
            {"name": "hami-nvidia", "resourceClaimTemplateName": template["metadata"]["name"]}
        ]
        assert stored["spec"]["containers"][0]["resources"] == {
            "limits": {},
            "claims": [{"name": "hami-nvidia", "request": "devices-0"}],
        }
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        assert request["exactly"]["capacity"] == {"requests": {"memory": "3Gi", "cores": "30"}}
        (owner,) = template["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("DeviceClass", DRIVER)
        assert template["metadata"]["namespace"] == "team"
        assert await running.ended() == 0


def test_a_vendor_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    (tmp_path / "c.json").write_text('{"scheduler": {"claimVendors": ["acme"]}}')

    with pytest.raises(ConfigError, match="'acme' is no vendor that is enabled; choose from: amd, "):
        configured({"config": tmp_path / "c.json"}, {})


async def test_without_the_class_a_pod_is_refused_with_what_to_do(server, tmp_path, options):
    server.store.delete(("deviceclasses", "", DRIVER))
    async with serving(server, tmp_path, options) as service:
        why = refused((await service.review(asked(manifest("a", memory=1000))))["response"])

    assert "there is no DeviceClass nvidia.hami.io" in why
    assert "frontEnd: dra" in why


async def test_a_template_of_that_name_with_other_words_is_refused(server, tmp_path, options):
    async with serving(server, tmp_path, options) as service:
        await taken(server, service, manifest("a", memory=1000))
        (template,) = server.claim_templates()
        forged = json.loads(json.dumps(template))
        forged["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"] = "1Mi"
        server.store.replace(("resourceclaimtemplates", "team", template["metadata"]["name"]), forged)

        why = refused((await service.review(asked(manifest("b", memory=1000))))["response"])

    assert "is not the one that hami-plugin makes; delete it" in why


@pytest.mark.parametrize(
    ("key", "limit"), [(f"requests.{COUNT}", 2), (f"limits.{MEMORY}", 2000), (f"limits.{CORES}", 60)]
)
async def test_a_quota_counts_pods_by_claims_from_their_admission_to_their_end(server, tmp_path, options, key, limit):
    server.create_quota("team", "own", {key: str(limit)})
    async with serving(server, tmp_path, options) as service:
        await until(lambda: service.cache.quotas.hard("team"))
        one = manifest("a", memory=1000, cores=30)
        trial = (await service.review(asked(one, dryRun=True)))["response"]
        answers = [(await service.review(asked(manifest(name, memory=1000, cores=30))))["response"] for name in "abc"]
        assert [answer["allowed"] for answer in (trial, *answers)] == [True, True, True, False]
        assert "exceeding resource quota" in refused(answers[-1])

        for name, answer in zip("ab", answers, strict=False):  # the watch shows them: they are counted once
            server.create_pod(patched(manifest(name, memory=1000, cores=30), answer))
        await until(lambda: len(service.cache.pods.claimed.uids) == 2)
        assert not (await service.review(asked(one)))["response"]["allowed"]
        assert (await service.review(asked(one, namespace="other", object=elsewhere(one))))["response"]["allowed"]

        server.delete_pod("team", "a")
        await until(lambda: len(service.cache.pods.claimed.uids) == 1)
        assert (await service.review(asked(one)))["response"]["allowed"]


def elsewhere(pod):
    return {**pod, "metadata": {**pod["metadata"], "namespace": "other"}}


async def test_a_pod_that_is_refused_afterwards_counts_for_nothing(server, tmp_path, options):
    server.create_quota("team", "own", {f"requests.{COUNT}": "1"})
    async with serving(server, tmp_path, options) as service:
        await until(lambda: service.cache.quotas.hard("team"))
        server.error(403, match="POST .*resourceclaimtemplates")
        why = refused((await service.review(asked(manifest("a", memory=1000))))["response"])
        assert "cannot be made" in why

        assert (await service.review(asked(manifest("a", memory=1000))))["response"]["allowed"]


async def test_a_template_goes_an_hour_after_its_last_use_and_not_while_a_pod_names_it(server, tmp_path, options):
    async with serving(server, tmp_path, options) as service:
        await taken(server, service, manifest("stays", memory=1000))
        await service.review(asked(manifest("fresh", memory=2000)))
        await service.review(asked(manifest("old", memory=3000)))
        await until(lambda: service.cache.pods.claimed.uids)
        old = datetime.now(UTC) - timedelta(minutes=61)
        names = {}
        for one in server.claim_templates():
            meta, (request,) = one["metadata"], one["spec"]["spec"]["devices"]["requests"]
            memory = request["exactly"]["capacity"]["requests"]["memory"]
            names[memory] = meta["name"]
            if memory != "2000Mi":
                patch = {"metadata": {"annotations": {USED: old.strftime(TIME)}}}
                server.store.patch(("resourceclaimtemplates", "team", meta["name"]), patch)
        await service._templates.sweep()
        assert {one["metadata"]["name"] for one in server.claim_templates()} == {names["1000Mi"], names["2000Mi"]}

        server.delete_pod("team", "stays")
        await until(lambda: not service.cache.pods.claimed.uids)
        await taken(server, service, manifest("again", memory=1000))  # notes the use anew
        server.delete_pod("team", "again")
        await until(lambda: not service.cache.pods.claimed.uids)
        await service._templates.sweep()
        assert {one["metadata"]["name"] for one in server.claim_templates()} == {names["1000Mi"], names["2000Mi"]}


async def test_a_template_that_is_asked_for_while_it_is_swept_stays(server, tmp_path, options):
    async with serving(server, tmp_path, options) as service:
        await service.review(asked(manifest("a", memory=1000)))
        (template,) = server.claim_templates()
        key = ("resourceclaimtemplates", "team", template["metadata"]["name"])
        old = (datetime.now(UTC) - timedelta(hours=2)).strftime(TIME)
        server.store.patch(key, {"metadata": {"annotations": {USED: old}}})

        cluster = service._cluster
        listing = cluster.list_claim_templates

        async def listed(*about):
            found = await listing(*about)
            await service.review(asked(manifest("b", memory=1000)))
            return found

        cluster.list_claim_templates = listed
        await service._templates.sweep()

        assert len(server.claim_templates()) == 1


def test_what_was_admitted_and_never_created_stops_counting():
    pods = ClaimedPods()
    pods.expect("team", ClaimedAmounts(token="a", amounts={COUNT: 1}), now=0.0)

    assert (pods.used("team", 59.0), pods.used("team", 61.0)) == ({COUNT: 1}, {})
