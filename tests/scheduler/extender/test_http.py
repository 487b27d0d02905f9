"""The port, asked as kube-scheduler and the API server ask it."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from hami_plugin.errors import ClusterError, HamiError, WireError
from hami_plugin.scheduler.extender.server import time_to_answer
from tests.support.extender import ARGS, BINDING, REVIEW, FakeExtender, listening, other_address

CALLS = {"/filter": ARGS, "/bind": BINDING, "/webhook": REVIEW}


async def test_each_call_reaches_its_decision_and_comes_back() -> None:
    extender = FakeExtender()
    async with listening(extender) as rig:
        assert await rig.post("/filter", ARGS) == (200, {"NodeNames": ["n1"], "FailedNodes": {}, "Error": ""})
        assert await rig.post("/bind", BINDING) == (200, {"Error": ""})
        status, review = await rig.post("/webhook", REVIEW)

        assert extender.bound == ["p"]
        assert (status, review["response"]) == (200, {"uid": "u", "allowed": True})
        for path in CALLS:
            assert await rig.counted("requests_total", path=path, outcome="answered") == 1
            assert await rig.counted("request_seconds_count", path=path) == 1


async def test_no_matter_is_made_of_the_content_type() -> None:
    async with listening(FakeExtender()) as rig:
        status, answer = await rig.post("/filter", json.dumps(ARGS).encode(), headers={"Content-Type": "text/plain"})

    assert (status, answer["NodeNames"]) == (200, ["n1"])


async def test_a_packed_request_is_refused_since_a_little_may_unpack_to_a_lot() -> None:
    async with listening(FakeExtender()) as rig:
        packed = gzip.compress(json.dumps(ARGS).encode())
        status, answer = await rig.post("/filter", packed, headers={"Content-Encoding": "gzip"})

        assert (status, answer["message"]) == (415, "the request is packed (gzip); send it as it is")
        assert (await rig.post("/filter", ARGS))[0] == 200


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b'{"Pod": ', "no JSON"),
        (b"\xff\xfe{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no object: list"),
        (b"null", "no object: NoneType"),
    ],
)
async def test_what_is_no_json_object_is_refused_with_the_reason(path: str, body: bytes, words: str) -> None:
    async with listening(FakeExtender()) as rig:
        status, answer = await rig.post(path, body)

        assert (status, answer["kind"], answer["code"], answer["reason"]) == (400, "Status", 400, "BadRequest")
        assert words in answer["message"]
        assert await rig.counted("requests_total", path=path, outcome="malformed") == 1


async def test_a_request_that_the_decision_cannot_read_is_the_callers_fault() -> None:
    extender = FakeExtender(fails=WireError("filter request: no Pod", hint="send kube-scheduler's ExtenderArgs"))
    async with listening(extender) as rig:
        status, answer = await rig.post("/filter", {})

    assert status == 400
    assert answer["message"] == "filter request: no Pod; send kube-scheduler's ExtenderArgs"


@pytest.mark.parametrize(("path", "method"), [(path, method) for path in CALLS for method in ("GET", "PUT", "DELETE")])
async def test_another_method_is_refused_and_the_right_one_named(path: str, method: str) -> None:
    async with listening(FakeExtender()) as rig, rig.session.request(method, rig.url(path)) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        assert (await answer.json())["message"] == f"{path} takes POST, not {method}"


async def test_another_path_is_answered_with_those_there_are() -> None:
    async with listening(FakeExtender()) as rig:
        status, answer = await rig.post("/prioritize", ARGS)

    assert status == 404
    assert {"/filter,", "/bind,", "/webhook"} <= set(answer["message"].split())


async def test_a_request_that_says_it_is_too_large_is_refused_unread() -> None:
    extender = FakeExtender()
    async with listening(extender, filter_mebibytes=1) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.server.port)
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n{")
        head = await asyncio.wait_for(reader.readline(), 60)
        writer.close()

        assert head.startswith(b"HTTP/1.1 413 ")
        assert await rig.counted("requests_total", path="/filter", outcome="too large") == 1


async def test_a_request_that_grows_too_large_is_refused_with_what_to_do() -> None:
    async def pieces():
        for _ in range(3):
            yield b"x" * (1 << 20)

    async with (
        listening(FakeExtender(), filter_mebibytes=1) as rig,
        rig.session.post(rig.url("/filter"), data=pieces()) as answer,
    ):
        assert answer.status == 413
        said = (await answer.json())["message"]
        assert "larger than 1 MiB" in said
        assert "nodeCacheCapable: true" in said
        assert "filterMebibytes" in said


async def test_a_filter_with_thousands_of_whole_nodes_is_read() -> None:
    node = {"metadata": {"annotations": {"hami.io/node-register": "x" * 4000}}, "status": {"images": ["y" * 2000] * 4}}
    nodes = [{**node, "metadata": {**node["metadata"], "name": f"n{k}"}} for k in range(2000)]
    request = {"Pod": {}, "Nodes": {"items": nodes}}
    assert len(json.dumps(request)) > 20 << 20

    async with listening(FakeExtender()) as rig:
        status, answer = await rig.post("/filter", request)

    assert (status, answer["NodeNames"]) == (200, ["n0"])


async def test_a_request_that_does_not_arrive_is_given_up() -> None:
    async with listening(FakeExtender(), read_seconds=0.2) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.server.port)
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        head = await asyncio.wait_for(reader.readline(), 60)
        writer.close()

        assert head.startswith(b"HTTP/1.1 408 ")
        assert await rig.counted("requests_total", path="/filter", outcome="slow request") == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of TLS
        b"\x00" * 100 + b"\r\n\r\n",
        b"POST /filter HTTP/9.9\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /filter HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"POST /filter HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
    ],
)
async def test_what_is_no_http_is_answered_without_the_inside_and_the_port_lives_on(garbage: bytes) -> None:
    async with listening(FakeExtender(), read_seconds=1) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.server.port)
        writer.write(garbage)
        writer.write_eof()
        said = await asyncio.wait_for(reader.read(), 30)
        writer.close()

        assert not said or said.startswith(b"HTTP/1.1 4")
        assert b"Traceback" not in said
        assert b".py" not in said
        assert (await rig.post("/filter", ARGS))[0] == 200


async def test_a_caller_that_goes_away_in_the_middle_does_no_harm() -> None:
    async with listening(FakeExtender()) as rig:
        _, writer = await asyncio.open_connection("127.0.0.1", rig.server.port)
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await until(rig, "requests_in_progress", 1, path="/filter")
        writer.transport.abort()

        await until(rig, "requests_in_progress", 0, path="/filter")
        assert await rig.counted("requests_total", path="/filter", outcome="internal") == 0
        assert (await rig.post("/filter", ARGS))[0] == 200


@pytest.mark.parametrize("path", ["/filter", "/bind"])
async def test_kube_scheduler_is_told_of_a_deadline_in_words_that_it_shows(path: str) -> None:
    extender = FakeExtender(takes_s=60)
    async with listening(extender, answer_seconds=0.1) as rig:
        status, answer = await rig.post(path, CALLS[path])

        assert (status, answer) == (200, {"Error": "hami-plugin scheduler: no answer within 0.1 s; it is tried again"})
        assert (extender.cancelled, extender.running) == (1, 0)
        assert await rig.counted("requests_total", path=path, outcome="deadline") == 1


async def test_the_api_server_is_told_of_a_deadline_by_a_status() -> None:
    async with listening(FakeExtender(takes_s=60), review_seconds=0.1) as rig:
        status, answer = await rig.post("/webhook", REVIEW)

    assert (status, answer["kind"], answer["code"]) == (504, "Status", 504)


@pytest.mark.parametrize(
    ("said", "within"), [("1s", (0.1, 0.95)), ("10s", (5, 9.5)), ("60s", (30, 30)), ("soon", (30, 30))]
)
def test_a_webhook_has_a_little_less_time_than_the_api_server_waits(said: str, within: tuple[float, float]) -> None:
    least, most = within

    assert least <= time_to_answer({"timeout": said}, 30) <= most


async def test_a_webhook_answers_by_the_time_that_the_api_server_tells() -> None:
    async with listening(FakeExtender(takes_s=3600), review_seconds=3600) as rig, asyncio.timeout(60):
        status, _ = await rig.post("/webhook?timeout=1s", REVIEW)

    assert status == 504


@pytest.mark.parametrize(
    ("error", "outcome", "code", "words"),
    [
        (ClusterError("the API server does not answer", hint="see /readyz"), "failed", 503, "see /readyz"),
        (HamiError("not yet"), "failed", 503, "not yet"),
        (RuntimeError("secret detail"), "internal", 500, "internal error"),
        (TimeoutError("secret detail"), "internal", 500, "internal error"),
    ],
)
async def test_a_decision_that_fails_is_told_without_its_inside(
    error: Exception, outcome: str, code: int, words: str
) -> None:
    async with listening(FakeExtender(fails=error)) as rig:
        filtered = await rig.post("/filter", ARGS)
        reviewed = await rig.post("/webhook", REVIEW)

        assert filtered[0] == 200
        assert words in filtered[1]["Error"]
        assert (reviewed[0], reviewed[1]["code"]) == (code, code)
        assert words in reviewed[1]["message"]
        assert "secret" not in str((filtered, reviewed))
        assert await rig.counted("requests_total", path="/filter", outcome=outcome) == 1


async def test_an_answer_that_says_no_is_counted_apart_with_its_reasons() -> None:
    full = {"n1": "1/8 CardInsufficientMemory, 7/8 CardUuidMismatch", "n2": "node unregistered", "n3": "who knows"}
    full |= {"n4": "1/2 CardQosPolicyMismatch(best-effort), 1/2 CardQosPolicyMismatch(fixed-share)"}
    async with listening(FakeExtender(full=full)) as rig:
        await rig.post("/filter", ARGS)
        await rig.post("/webhook", REVIEW)

        assert await rig.counted("requests_total", path="/filter", outcome="refused") == 1
        assert await rig.counted("requests_total", path="/webhook", outcome="refused") == 1
        once = ("CardInsufficientMemory", "CardUuidMismatch", "CardQosPolicyMismatch", "NodeUnregistered", "Other")
        for reason in once:
            assert await rig.counted("nodes_refused_total", reason=reason) == 1


async def test_a_reason_that_quotes_a_pods_own_words_makes_no_series_of_its_own() -> None:
    quoted = {"n1": "hami.io/device-scoring-weights=slot=1, 1/8 Invented-1 is not as slot=1,core=1,memory=3"}
    async with listening(FakeExtender(full=quoted)) as rig:
        await rig.post("/filter", ARGS)

        assert await rig.counted("nodes_refused_total", reason="Invented-1") == 0
        assert await rig.counted("nodes_refused_total", reason="Other") == 1


async def test_filters_above_the_limit_wait_and_are_answered() -> None:
    extender = FakeExtender(gate=asyncio.Event())
    async with listening(extender) as rig:
        calls = [asyncio.create_task(rig.post("/filter", ARGS)) for _ in range(30)]
        await until(rig, "requests_in_progress", 30, path="/filter")
        extender.gate.set()
        answers = await asyncio.gather(*calls)

    assert {status for status, _ in answers} == {200}
    assert extender.most == 4


async def test_binds_wait_for_each_other_nowhere_here() -> None:
    extender = FakeExtender(gate=asyncio.Event())
    async with listening(extender) as rig:
        calls = [asyncio.create_task(rig.post("/bind", BINDING)) for _ in range(50)]
        await until(rig, "requests_in_progress", 50, path="/bind")
        extender.gate.set()
        answers = await asyncio.gather(*calls)

    assert {status for status, _ in answers} == {200}
    assert extender.most == 50


async def test_only_callers_on_this_host_may_filter_and_bind_unless_all_may() -> None:
    here = other_address()
    async with listening(FakeExtender(), listen_host="0.0.0.0") as rig:
        answers = {path: await _from(here, rig, path) for path in CALLS}
        assert [answers[path][0] for path in CALLS] == [403, 403, 200]
        assert (
            "run it in the same pod, or give it a certificate of clientCa, or set extenderPeers: any"
            in answers["/filter"][1]["message"]
        )
        assert {(await rig.post(path, body))[0] for path, body in CALLS.items()} == {200}

    async with listening(FakeExtender(), listen_host="0.0.0.0", extender_peers="any") as rig:
        assert {(await _from(here, rig, path))[0] for path in CALLS} == {200}


async def test_probes_and_metrics_are_on_the_same_port() -> None:
    extender = FakeExtender(unready=("the first list of nodes has not come",))
    async with listening(extender) as rig:
        assert (await rig.get("/healthz"))[0] == 200
        status, text = await rig.get("/readyz")
        assert status == 503
        assert json.loads(text)["reasons"] == ["decisions: the first list of nodes has not come"]

        extender.unready = ()
        assert (await rig.get("/readyz"))[0] == 200
        assert "hami_plugin_build_info" in (await rig.get("/metrics"))[1]


async def test_calls_that_run_are_finished_when_told_to_stop() -> None:
    extender = FakeExtender(gate=asyncio.Event())
    async with listening(extender, stop_seconds=60) as rig:
        port = rig.server.port
        call = asyncio.create_task(rig.post("/bind", BINDING))
        await until(rig, "requests_in_progress", 1, path="/bind")

        stopping = asyncio.create_task(rig.server.stop())
        await refused(port)
        assert not call.done()
        extender.gate.set()
        await asyncio.wait_for(stopping, 30)

        assert await call == (200, {"Error": ""})
        assert extender.cancelled == 0


async def test_calls_that_do_not_finish_in_time_are_cut_off() -> None:
    extender = FakeExtender(gate=asyncio.Event())
    async with listening(extender, stop_seconds=0.1) as rig:
        call = asyncio.create_task(rig.post("/bind", BINDING))
        await until(rig, "requests_in_progress", 1, path="/bind")

        await asyncio.wait_for(rig.server.stop(), 30)

        with pytest.raises(Exception, match=r"(?i)disconnected|reset|closed"):
            await call
        assert extender.cancelled == 1


async def test_a_port_in_use_is_said_with_a_way_out() -> None:
    async with listening(FakeExtender()) as rig:
        with pytest.raises(HamiError) as caught:
            async with listening(FakeExtender(), listen_port=rig.server.port):
                pass

    assert str(caught.value).endswith(
        "for the extender and the webhook: another process uses this port; stop it, or choose another listenPort"
    )


async def until(rig, name: str, value: float, **labels: str) -> None:
    async with asyncio.timeout(30):
        while await rig.counted(name, **labels) != value:  # noqa: ASYNC110  # what is awaited is seen by a scrape only
            await asyncio.sleep(0.01)


async def refused(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except (ConnectionRefusedError, ConnectionResetError):
                return
            writer.close()
            await asyncio.sleep(0.01)


async def _from(address: str, rig, path: str) -> tuple[int, object]:
    async with rig.session.post(f"http://{address}:{rig.server.port}{path}", json=CALLS[path]) as answer:
        return answer.status, await answer.json()
