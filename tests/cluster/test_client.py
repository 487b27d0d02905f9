"""Single calls: what they send, what they return, and how they fail."""

import asyncio

import pytest

from hami_plugin.cluster.client import CONNECTIONS
from hami_plugin.errors import MAX_RETRY_AFTER_S, ClusterError
from hami_plugin.model.ports import PodFeed, Subject
from hami_plugin.model.views import pod_view
from tests.support.watching import reachable, running

PATCH_NODE = r"PATCH /api/v1/nodes/n1"


@pytest.fixture
def pod(server):
    return pod_view(server.create_pod({"metadata": {"name": "p", "namespace": "team", "annotations": {"old": "1"}}}))


async def test_patching_a_pod_sets_and_removes_annotations_and_returns_the_result(cluster, server, pod):
    result = await cluster.patch_pod(pod, {"old": None, "hami.io/bind-phase": "success"})

    assert result.annotations == {"hami.io/bind-phase": "success"}
    assert server.pod("team", "p")["metadata"]["annotations"] == {"hami.io/bind-phase": "success"}
    assert int(result.resource_version) > int(pod.resource_version)


async def test_a_pod_that_was_replaced_under_its_name_is_not_patched(cluster, server, pod):
    server.delete_pod("team", "p")
    server.create_pod({"metadata": {"name": "p", "namespace": "team"}})

    with pytest.raises(ClusterError, match=r"metadata\.uid: .*field is immutable") as caught:
        await cluster.patch_pod(pod, {"a": "1"})

    assert caught.value.conflict
    assert "annotations" not in server.pod("team", "p")["metadata"]


async def test_a_server_that_calls_another_uid_a_failed_precondition_means_the_same(cluster, server, pod):
    server.error(409, message="Precondition failed: UID in precondition: x, UID in object meta: y")

    with pytest.raises(ClusterError) as caught:
        await cluster.patch_pod(pod, {"a": "1"})

    assert caught.value.conflict


async def test_a_pod_that_is_gone_is_not_found(cluster, server, pod):
    server.delete_pod("team", "p")

    with pytest.raises(ClusterError, match=r'patch pods team/p: 404 Not Found: pods "p" not found') as caught:
        await cluster.patch_pod(pod, {"a": "1"})

    assert caught.value.not_found
    assert not caught.value.temporary


async def test_the_node_is_read_and_patched(cluster, server):
    await cluster.patch_node({"a": "1", "b": "2"})
    await cluster.patch_node({"a": None})

    node = await cluster.get_node()

    assert (node.name, node.annotations) == ("n1", {"b": "2"})


async def test_a_node_patch_at_an_old_version_conflicts_and_a_present_one_does_not(cluster, server):
    old = (await cluster.get_node()).resource_version
    present = server.annotate_node("n1", {"somebody": "else"})["metadata"]["resourceVersion"]

    with pytest.raises(ClusterError, match="read it again") as caught:
        await cluster.patch_node({"a": "1"}, resource_version=old)
    await cluster.patch_node({"a": "2"}, resource_version=present)

    assert caught.value.conflict
    assert server.node("n1")["metadata"]["annotations"] == {"somebody": "else", "a": "2"}


async def test_annotations_that_are_too_large_are_refused_with_the_servers_words(cluster, server):
    with pytest.raises(ClusterError, match="262144 bytes") as caught:
        await cluster.patch_node({"a": "x" * 300_000})

    assert caught.value.status == 422
    assert not caught.value.temporary


@pytest.mark.scenario("P8")
async def test_a_missing_permission_names_the_verb_and_shows_until_it_is_granted(cluster, server):
    server.error(403, match=PATCH_NODE, message='nodes "n1" is forbidden: User "x" cannot patch resource')

    with pytest.raises(ClusterError, match='allow verb "patch" on "nodes" in the ClusterRole'):
        await cluster.patch_node({"a": "1"})
    await cluster.get_node()
    forbidden = cluster.reachable.value
    await cluster.patch_node({"a": "1"})

    assert forbidden.startswith("APIForbidden: patch nodes n1: 403 Forbidden")
    assert cluster.reachable.value == ""


async def test_what_is_known_of_pods_is_old_while_the_server_is_away_and_not_for_want_of_another_permission(
    cluster, server
):
    server.error(403, match=PATCH_NODE, message="forbidden")
    with pytest.raises(ClusterError):
        await cluster.patch_node({"a": "1"})
    permission_only = cluster.pods_outdated
    server.error(503)
    with pytest.raises(ClusterError):
        await cluster.get_node()
    ailing = cluster.pods_outdated
    await cluster.get_node()

    assert permission_only == ""
    assert ailing.startswith("failing: ")
    assert cluster.pods_outdated == ""


async def test_what_is_known_of_pods_is_old_where_they_may_not_be_watched(cluster, server):
    server.error(403, match="GET /api/v1/pods", message="forbidden")
    feed = PodFeed(replace=lambda _pods: None, update=lambda _pod: None, delete=lambda _pod: None)
    async with running(cluster.follow_pods(feed)):
        said = await reachable(cluster, lambda text: "list pods" in text)

    assert said.startswith("APIForbidden: list pods")
    assert cluster.pods_outdated == said


@pytest.mark.scenario("P5")
async def test_retry_after_holds_back_every_later_write_but_no_read(cluster, server, pod):
    server.error(429, match=PATCH_NODE, retry_after=110)
    with pytest.raises(ClusterError) as caught:
        await cluster.patch_node({"a": "1"})
    assert caught.value.retry_after == 110

    with pytest.raises(ClusterError, match="held back") as held:
        await cluster.patch_pod(pod, {"a": "1"})
    with pytest.raises(ClusterError, match="held back"):
        await cluster.create_event(Subject(kind="Node", name="n1"), reason="R", message="m", warning=True)
    await cluster.get_node()

    assert 105 < held.value.retry_after <= 110
    assert held.value.status == 429
    assert server.count("PATCH|POST") == 1


async def test_a_retry_after_of_a_day_silences_nobody_for_so_long(cluster, server):
    server.error(429, match=PATCH_NODE, retry_after=86_400)

    with pytest.raises(ClusterError) as caught:
        await cluster.patch_node({"k": "v"})

    assert caught.value.retry_after == MAX_RETRY_AFTER_S


async def test_a_short_retry_after_only_delays_the_next_write(cluster, server, pod):
    server.error(429, match=PATCH_NODE, retry_after=0.2)
    with pytest.raises(ClusterError):
        await cluster.patch_node({"a": "1"})

    await cluster.patch_pod(pod, {"a": "1"})

    refused, served = (request for request in server.requests if request.verb == "PATCH")
    assert served.at - refused.at >= 0.19


@pytest.mark.scenario("P2")
async def test_many_calls_at_once_share_a_few_connections(cluster, server):
    """Connections that were ever made stay for as long as calls come: without a bound, a busy minute is never over."""
    server.faults.latency = 0.02

    await asyncio.gather(*(cluster.patch_node({"a": str(number)}) for number in range(60)))

    assert server.connections <= CONNECTIONS


async def test_a_call_that_is_never_answered_ends_at_the_deadline(brief, server, observer):
    server.hang("GET /api/v1/nodes")

    async with asyncio.timeout(30), brief() as cluster:
        with pytest.raises(ClusterError, match=r"none within 0\.5 s") as caught:
            await cluster.get_node()

    assert caught.value.status == 0
    assert caught.value.temporary
    assert cluster.reachable.value.startswith("unreachable: get nodes n1")
    assert observer.calls == [("get", "nodes", "unreachable")]


async def test_a_server_that_refuses_is_unreachable_until_it_answers(cluster, server):
    await server.refuse()
    with pytest.raises(ClusterError, match="check the network") as caught:
        await cluster.get_node()
    away = cluster.reachable.value

    await server.accept()
    await cluster.get_node()

    assert caught.value.status == 0
    assert away.startswith("unreachable: ")
    assert cluster.reachable.value == ""


async def test_before_the_first_answer_nothing_is_claimed(cluster):
    assert cluster.reachable.value == "the API server has not answered yet"


async def test_an_ailing_server_shows_and_is_temporary(cluster, server):
    server.error(503)

    with pytest.raises(ClusterError) as caught:
        await cluster.get_node()

    assert caught.value.temporary
    assert cluster.reachable.value.startswith("failing: get nodes n1: 503 Service Unavailable")


@pytest.mark.scenario("P6")
async def test_an_answer_cut_in_half_is_no_answer(cluster, server):
    server.truncate_next()

    with pytest.raises(ClusterError, match="not a JSON object") as caught:
        await cluster.get_node()

    assert caught.value.temporary
    assert (await cluster.get_node()).name == "n1"


async def test_each_call_is_reported_once_with_its_outcome(cluster, server, observer, pod):
    server.error(409, match=PATCH_NODE)

    await cluster.get_node()
    with pytest.raises(ClusterError):
        await cluster.patch_node({"a": "1"})
    await cluster.create_event(Subject(kind="Node", name="n1"), reason="R", message="m", warning=False)

    assert observer.calls == [("get", "nodes", "200"), ("patch", "nodes", "409"), ("create", "events", "201")]


async def test_a_cancelled_call_ends_at_once(cluster, server):
    server.hang()
    task = asyncio.create_task(cluster.get_node())
    await asyncio.sleep(0.05)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_event_about_a_pod_lies_beside_it(cluster, server, pod):
    subject = Subject(kind="Pod", name="p", namespace="team", uid=pod.uid)

    await cluster.create_event(subject, reason="UnknownDevice", message="no such id", warning=True)

    (event,) = server.events()
    assert event["metadata"]["namespace"] == "team"
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "p",
        "namespace": "team",
        "uid": pod.uid,
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "UnknownDevice", "no such id")
    assert event["source"] == {"component": "hami-plugin", "host": "n1"}


async def test_an_event_about_a_node_lies_in_the_default_namespace(cluster, server):
    await cluster.create_event(Subject(kind="Node", name="n1"), reason="R", message="m", warning=False)

    (event,) = server.events()
    assert (event["metadata"]["namespace"], event["type"]) == ("default", "Normal")


async def test_the_same_event_again_counts_up_and_another_one_is_new(cluster, server):
    subject = Subject(kind="Node", name="n1")

    for message in ("a", "a", "b", "a"):
        await cluster.create_event(subject, reason="R", message=message, warning=True)

    assert {event["message"]: event["count"] for event in server.events()} == {"a": 3, "b": 1}


async def test_an_event_that_expired_is_written_anew(cluster, server):
    subject = Subject(kind="Node", name="n1")
    await cluster.create_event(subject, reason="R", message="m", warning=True)
    (first,) = server.events()
    server.store.delete(("events", "default", first["metadata"]["name"]))

    await cluster.create_event(subject, reason="R", message="m", warning=True)

    (second,) = server.events()
    assert second["metadata"]["name"] != first["metadata"]["name"]
    assert second["count"] == 1


async def test_an_event_in_a_namespace_that_is_going_is_no_missing_right_and_not_worth_another_try(cluster, server):
    why = 'events "p.1" is forbidden: unable to create new content in namespace team because it is being terminated'
    server.error(403, match="POST .*/events", message=why)

    with pytest.raises(ClusterError, match="because it is being terminated") as error:
        await cluster.create_event(
            Subject(kind="Pod", name="p", namespace="team"), reason="R", message="m", warning=True
        )

    assert not error.value.temporary
    assert cluster.reachable.value == ""


async def test_long_names_and_messages_fit_into_an_event(cluster, server):
    subject = Subject(kind="Pod", name="p" * 253, namespace="team")

    await cluster.create_event(subject, reason="R", message="ö" * 5000, warning=True)

    (event,) = server.events()
    assert len(event["metadata"]["name"]) <= 253
    assert len(event["message"].encode()) <= 1024
