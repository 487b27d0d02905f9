"""The simulated API server keeps the promises of a real one, over real HTTP."""

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from hami_plugin.simulation.apiserver import REQUESTS, SimulatedApiServer
from hami_plugin.simulation.objects import merged

MERGE = {"Content-Type": "application/merge-patch+json"}
NODE = "/api/v1/nodes/n1"
PODS = "/api/v1/namespaces/team/pods"


@pytest.fixture
async def server():
    async with SimulatedApiServer(bookmark_seconds=0.05) as server:
        server.create_node("n1")
        yield server


@pytest.fixture
async def http(server):
    async with aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


def pod(name: str, node: str = "", **annotations: str) -> dict:
    meta = {"name": name, "namespace": "team", "annotations": annotations}
    return {"metadata": meta, "spec": {"containers": [{"name": "main"}], **({"nodeName": node} if node else {})}}


async def patch(http, path, body, **headers):
    async with http.patch(path, json=body, headers=MERGE | headers) as reply:
        return reply.status, await reply.json()


async def get(http, path, **query):
    async with http.get(path, params=query) as reply:
        return reply.status, await reply.json()


@asynccontextmanager
async def watching(http, path, **query):
    async with http.get(path, params={"watch": "1", **query}) as reply:

        async def events():
            async for line in reply.content:
                yield json.loads(line)

        yield events()


async def take(events, count):
    found = []
    async with asyncio.timeout(30):
        async for event in events:
            found.append(event)
            if len(found) == count:
                return found
    return found


# The examples of RFC 7386, appendix A.
@pytest.mark.parametrize(
    ("target", "change", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_does_what_its_rfc_says(target, change, expected):
    assert merged(target, change) == expected


async def test_a_patch_merges_deletes_and_raises_the_version(server, http):
    _, first = await patch(http, NODE, {"metadata": {"annotations": {"a": "1", "b": "2"}}})
    status, second = await patch(http, NODE, {"metadata": {"annotations": {"a": None, "c": "3"}}})

    assert status == 200
    assert second["metadata"]["annotations"] == {"b": "2", "c": "3"}
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])


async def test_a_patch_that_changes_nothing_keeps_the_version(server, http):
    _, first = await patch(http, NODE, {"metadata": {"annotations": {"a": "1"}}})
    _, second = await patch(http, NODE, {"metadata": {"annotations": {"a": "1", "absent": None}}})

    assert second == first


async def test_a_patch_with_an_old_version_conflicts(server, http):
    old = server.node("n1")["metadata"]["resourceVersion"]
    server.annotate_node("n1", {"a": "1"})

    status, answer = await patch(http, NODE, {"metadata": {"resourceVersion": old, "annotations": {"a": "2"}}})

    assert (status, answer["reason"]) == (409, "Conflict")
    assert server.node("n1")["metadata"]["annotations"] == {"a": "1"}


async def test_a_patch_for_another_uid_is_invalid_and_changes_nothing(server, http):
    server.create_pod(pod("p"))

    status, answer = await patch(http, f"{PODS}/p", {"metadata": {"uid": "other", "annotations": {"a": "1"}}})

    assert (status, answer["reason"]) == (422, "Invalid")
    assert 'metadata.uid: Invalid value: "other": field is immutable' in answer["message"]
    assert server.pod("team", "p")["metadata"]["annotations"] == {}


@pytest.mark.parametrize(
    ("annotations", "status"),
    [
        ({"a": "x" * 262_143}, 200),
        ({"a": "x" * 262_144}, 422),
        ({"not/a/key": "x"}, 422),
        ({"a": 5}, 400),
    ],
)
async def test_annotations_are_checked_as_a_real_server_does(server, http, annotations, status):
    answered, _ = await patch(http, NODE, {"metadata": {"annotations": annotations}})

    assert answered == status


async def test_a_pods_spec_cannot_be_patched_and_its_status_only_at_its_own_path(server, http):
    server.create_pod(pod("p"))

    assert (await patch(http, f"{PODS}/p", {"spec": {"nodeName": "n1"}}))[0] == 422
    await patch(http, f"{PODS}/p", {"status": {"phase": "Running"}})
    assert server.pod("team", "p")["status"]["phase"] == "Pending"
    await patch(http, f"{PODS}/p/status", {"status": {"phase": "Running"}})
    assert server.pod("team", "p")["status"]["phase"] == "Running"


async def test_a_pod_is_created_bound_listed_by_node_and_deleted(server, http):
    async with http.post(PODS, json=pod("p")) as reply:
        assert reply.status == 201
    server.create_pod(pod("elsewhere", "n2"))
    binding = {"target": {"kind": "Node", "name": "n1"}}

    async with http.post(f"{PODS}/p/binding", json=binding) as reply:
        assert reply.status == 201
    async with http.post(f"{PODS}/p/binding", json=binding) as reply:
        assert reply.status == 409
    _, found = await get(http, "/api/v1/pods", fieldSelector="spec.nodeName=n1")
    async with http.delete(f"{PODS}/p") as reply:
        assert reply.status == 200

    assert [item["metadata"]["name"] for item in found["items"]] == ["p"]
    assert (await get(http, f"{PODS}/p"))[0] == 404


async def test_a_graceful_delete_only_marks_the_pod(server, http):
    server.create_pod(pod("p"))

    async with http.delete(f"{PODS}/p", params={"gracePeriodSeconds": "30"}) as reply:
        assert reply.status == 200

    assert server.pod("team", "p")["metadata"]["deletionTimestamp"]


async def test_lists_come_in_pages(server, http):
    for number in range(5):
        server.create_pod(pod(f"p{number}", "n1"))

    names, token = [], ""
    for _ in range(3):
        _, page = await get(http, "/api/v1/pods", limit="2", **({"continue": token} if token else {}))
        names += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue", "")

    assert names == [f"p{number}" for number in range(5)]
    assert token == ""


async def test_a_continue_token_expires_with_its_history(server, http):
    for number in range(3):
        server.create_pod(pod(f"p{number}"))
    _, page = await get(http, "/api/v1/pods", limit="2")
    server.create_pod(pod("later"))
    server.compact()

    status, answer = await get(http, "/api/v1/pods", **{"continue": page["metadata"]["continue"]})

    assert (status, answer["reason"]) == (410, "Expired")


async def test_a_watch_tells_what_its_selector_sees(server, http):
    version = server.create_pod(pod("p"))["metadata"]["resourceVersion"]
    query = {"fieldSelector": "spec.nodeName=n1", "resourceVersion": version}

    async with watching(http, "/api/v1/pods", **query) as events:
        server.create_pod(pod("other", "n2"))
        server.bind("team", "p", "n1")
        server.set_phase("team", "p", "Running")
        server.delete_pod("team", "p")
        seen = await take(events, 3)

    assert [event["type"] for event in seen] == ["ADDED", "MODIFIED", "DELETED"]
    assert seen[1]["object"]["status"]["phase"] == "Running"


async def test_a_watch_without_version_begins_with_what_exists(server, http):
    server.create_pod(pod("p", "n1"))

    async with watching(http, "/api/v1/pods") as events:
        (first,) = await take(events, 1)

    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "p")


async def test_bookmarks_carry_the_version_only_when_asked_for(server, http):
    version = server.store.version.value
    query = {"resourceVersion": str(version)}

    async with watching(http, "/api/v1/pods", allowWatchBookmarks="true", **query) as events:
        server.annotate_node("n1", {"a": "1"})
        marks = await take(events, 2)
    async with watching(http, "/api/v1/pods", timeoutSeconds="1", **query) as events:
        silent = await take(events, 1)

    assert {event["type"] for event in marks} == {"BOOKMARK"}
    assert marks[-1]["object"]["metadata"]["resourceVersion"] == str(version + 1)
    assert silent == []


@pytest.mark.parametrize("as_http", [False, True])
async def test_a_watch_from_a_compacted_version_is_gone(server, http, as_http):
    server.annotate_node("n1", {"a": "1"})
    server.compact(as_http=as_http)

    async with http.get("/api/v1/pods", params={"watch": "1", "resourceVersion": "1"}) as reply:
        answer = json.loads(await reply.read())

    status = answer if as_http else answer["object"]
    assert reply.status == (410 if as_http else 200)
    assert status["code"] == 410


async def test_open_watches_can_be_dropped_and_expired(server, http):
    version = str(server.store.version.value)
    async with watching(http, "/api/v1/pods", resourceVersion=version) as events:
        server.expire_watches()
        (ended,) = await take(events, 2)
    async with watching(http, "/api/v1/pods", resourceVersion=version) as events:
        server.drop_watches()
        with pytest.raises(aiohttp.ClientError):
            await take(events, 1)

    assert (ended["type"], ended["object"]["code"]) == ("ERROR", 410)


async def test_a_list_from_the_future_is_refused(server, http):
    server.store.rewind(1)

    status, answer = await get(http, "/api/v1/pods", resourceVersion="99")

    assert status == 504
    assert "Too large resource version" in answer["message"]


async def test_errors_are_ordered_by_path_and_count(server, http):
    server.error(429, count=2, match="PATCH /api/v1/nodes", retry_after=7)

    async with http.get(NODE) as reply:
        assert reply.status == 200
    for expected in (429, 429, 200):
        async with http.patch(NODE, json={}, headers=MERGE) as reply:
            assert reply.status == expected
            assert reply.headers.get("Retry-After") == ("7" if expected == 429 else None)


async def test_a_hanging_request_is_answered_after_healing(server, http):
    server.hang("GET /api/v1/nodes")
    waiting = asyncio.create_task(get(http, NODE))
    await asyncio.sleep(0.05)
    assert not waiting.done()

    server.heal()

    assert (await waiting)[0] == 200


async def test_a_lost_patch_is_answered_and_not_stored(server, http):
    server.lose_next_patch()

    status, answer = await patch(http, NODE, {"metadata": {"annotations": {"a": "1"}}})

    assert (status, answer["metadata"]["annotations"]) == (200, {"a": "1"})
    assert "annotations" not in server.node("n1")["metadata"]


async def test_a_truncated_answer_is_not_json(server, http):
    server.truncate_next()

    async with http.get(NODE) as reply:
        body = await reply.read()

    with pytest.raises(json.JSONDecodeError):
        json.loads(body)


async def test_a_server_that_refuses_comes_back_on_its_port_with_its_objects(server, http):
    url = server.url
    await server.refuse()
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(http, NODE)

    await server.accept()

    assert server.url == url
    assert (await get(http, NODE))[0] == 200


async def test_only_trusted_tokens_are_let_in(server, http):
    server.trust("good")

    async with http.get(NODE, headers={"Authorization": "Bearer good"}) as reply:
        assert reply.status == 200
    async with http.get(NODE, headers={"Authorization": "Bearer old"}) as reply:
        assert reply.status == 401


async def test_an_event_lives_in_the_namespace_of_its_subject(server, http):
    event = {"metadata": {"generateName": "e-"}, "involvedObject": {"kind": "Node", "name": "n1"}, "reason": "R"}

    async with http.post("/api/v1/namespaces/default/events", json=event) as reply:
        assert reply.status == 201
    async with http.post("/api/v1/namespaces/team/events", json=event) as reply:
        assert reply.status == 422

    assert [item["reason"] for item in server.events()] == ["R"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/api/v1/secrets", 404), ("/api/v1/namespaces/a/nodes", 404), ("/api/v1/pods/p", 404), ("/api/v1/nodes/x", 404)],
)
async def test_what_does_not_exist_is_not_found(http, path, status):
    answered, answer = await get(http, path)

    assert (answered, answer["kind"]) == (status, "Status")


async def test_requests_are_logged_and_counted(server, http):
    await get(http, NODE)
    await patch(http, NODE, {})

    assert [(item.verb, item.path, item.status) for item in server.requests] == [
        ("GET", NODE, 200),
        ("PATCH", NODE, 200),
    ]
    assert server.count("PATCH") == 1


def test_it_runs_as_its_own_process_and_leaves_a_kubeconfig(tmp_path: Path):
    config = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "hami_plugin.simulation.apiserver", "--port", "0", "--kubeconfig", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        process.terminate()

    assert address.startswith("http://127.0.0.1:")
    assert json.loads(config.read_text())["clusters"][0]["cluster"]["server"] == address
    assert process.returncode == 0


async def test_another_process_can_read_what_was_asked_and_by_whom(server, http):
    await http.get(NODE, headers={"User-Agent": "somebody"})

    for _ in range(2):  # asking for it leaves no trace in it
        asked = await (await http.get(REQUESTS)).json()
        assert [(one["verb"], one["path"], one["status"], one["agent"]) for one in asked] == [
            ("GET", NODE, 200, "somebody")
        ]
