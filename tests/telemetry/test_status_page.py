"""The status page as HTML: whole, safe whatever pods and drivers call themselves, and for whom it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from hami_plugin.telemetry import http
from hami_plugin.telemetry.http import MAX_TEXT, Probes, TelemetryServer, news, page, policy
from tests.support.scale import examples

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style></title><svg onload=alert(1)>",
    "&lt;b&gt;",
    "javascript:alert(1)",
    "a\u202eb\x00c\x1b[31m",
    "x" * 100_000,
)
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Checked(HTMLParser):
    """Every tag is closed in its order, and every attribute and element is one of the page's own."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _value in attrs}
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _value in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def document(name: str = "plain") -> dict[str, Any]:
    """A node where everything that others may name is named so."""
    containers = [
        {
            "namespace": name,
            "pod": name,
            "container": name,
            "memoryLimit": 1 << 30,
            "cores": 0.25,
            "memoryUsed": 5 << 20,
            "driverMemory": 7 << 20,
        }
    ]
    devices = [
        {
            "vendor": name,
            "noun": name,
            "number": number,
            "uuid": f"{name}{number}",
            "model": name,
            "health": health,
            "reason": name,
            "message": name,
            "memory": 80 << 30,
            "shares": 10,
            "sharesAllocated": 1,
            "containers": containers if number == "0" else [],
            "outsiders": [{"who": name, "processes": 2, "memory": 9 << 20}] if number == "0" else None,
        }
        for number, health in enumerate_text("healthy", "suspect", "unhealthy", "probation")
    ]
    event = {"time": 1.7e9, "about": name, "kind": name, "reason": name, "message": name, "warning": True}
    return {
        "node": name,
        "version": "1.2.3",
        "time": 1.7e9,
        "components": {"api server": "", name: name},
        "configuration": {"generation": 3, "refused": "invalid", "problem": name},
        "devices": devices,
        "links": [{"vendor": name, "pairs": [{"a": "0", "b": "1", "label": name, "score": 5}], "more": 1}],
        "partitions": [{"resource": name, "card": name, "profile": name, "state": name, "owner": name}],
        "placeable": [{"resource": name, "card": name, "profile": name, "left": 2}],
        "refused": [event],
        "events": [event, {**event, "warning": False}],
    }


def enumerate_text(*values: str) -> list[tuple[str, str]]:
    return [(str(number), value) for number, value in enumerate(values)]


def test_the_page_is_well_formed_and_says_everything() -> None:
    found = Checked(page(document()))

    assert len(found.ids) == len(set(found.ids))
    for words in (
        "1 of 10 shares",
        "1.0 GiB",
        "25% of the cores",
        "uses 5 MiB (7 MiB by the driver)",
        "2 on it, 9 MiB",
        "configuration 3",
        "2 more",
        "free",
    ):
        assert words in found.text
    assert not found.attributes & {"onclick", "onload", "style"}


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_no_name_makes_an_element_an_attribute_or_a_long_page(name: str) -> None:
    plain = Checked(page(document()))
    text = page(document(name))
    found = Checked(text)

    assert (found.elements, found.attributes) == (plain.elements, plain.attributes)
    assert len(text) < len(page(document())) + 200 * 6 * MAX_TEXT
    assert not any(character in text for character in "\x00\x1b\u202e")


@settings(max_examples=examples(200), deadline=None)
@given(st.text(max_size=40))
def test_any_name_is_only_text(name: str) -> None:
    plain = Checked(page(document()))
    found = Checked(page(document(name)))

    assert (found.elements, found.attributes) == (plain.elements, plain.attributes)


def test_the_policy_lets_only_the_pages_own_script_and_style_run() -> None:
    text = page(document())
    allowed = policy()

    assert "unsafe" not in allowed
    assert allowed.startswith("default-src 'none'")
    assert f"<script>{http.SCRIPT}</script>" in text
    assert f"<style>{http.STYLE}</style>" in text
    for part in (http.SCRIPT, http.STYLE):
        assert http._digest(part) in allowed  # how a browser counts it
    assert "http:" not in text
    assert "https:" not in text


def test_the_digest_changes_with_what_is_seen_and_not_with_the_time() -> None:
    first = news(document())

    assert news({**document(), "time": 1.8e9})["digest"] == first["digest"]
    assert news({**document(), "components": {"api server": "away"}})["digest"] != first["digest"]
    json.dumps(first)


def test_a_node_without_devices_has_a_page() -> None:
    none: Mapping[str, Any] = {
        **document(),
        **{key: [] for key in ("devices", "links", "partitions", "placeable", "refused", "events")},
    }

    assert "No devices are known." in Checked(page(none)).text


def test_the_links_of_many_devices_are_a_table_and_no_picture() -> None:
    pairs = [{"a": str(n), "b": str(n + 1), "label": "NV1", "score": 1} for n in range(40)]
    found = Checked(page({**document(), "links": [{"vendor": "v", "pairs": pairs, "more": 0}]}))

    assert "line" not in found.elements
    assert "39-40" in found.text


class Asked:
    """A server of the page, and how often the state was made."""

    def __init__(self, readers: str) -> None:
        self.times = 0
        self.server = TelemetryServer(
            "127.0.0.1",
            0,
            Probes(
                registry=CollectorRegistry(),
                alive=list,
                ready=dict,
                configuration=dict,
                status=self._status,
                status_readers=lambda: readers,
            ),
        )

    def _status(self) -> Mapping[str, Any]:
        self.times += 1
        return document()

    async def get(self, path: str, **headers: str) -> tuple[int, str, str]:
        url = f"http://127.0.0.1:{self.server.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
            return answer.status, answer.headers.get("Content-Security-Policy", ""), await answer.text()


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize(
    ("readers", "near", "host", "seen"),
    [
        ("loopback", True, "", True),
        ("loopback", True, "localhost:9394", True),
        ("loopback", True, "[::1]:9394", True),
        ("loopback", True, "evil.example", False),
        ("loopback", False, "", False),
        ("any", False, "", True),
        ("any", False, "node-7.example", True),
        ("off", True, "", False),
    ],
)
async def test_only_those_see_the_page_who_may(
    monkeypatch: pytest.MonkeyPatch, readers: str, near: bool, host: str, seen: bool
) -> None:
    asked = Asked(readers)
    monkeypatch.setattr(http, "_from_loopback", lambda _request: near)
    await asked.server.start()
    try:
        headers = {"Host": host} if host else {}
        status, allowed, text = await asked.get("/", **BROWSER, **headers)
        assert status == 200
        assert text.startswith("<!DOCTYPE html>" if seen else "hami-plugin\n")
        assert allowed == (policy() if seen else "")
        status, _policy, text = await asked.get("/status.json", **headers)
        assert status == (200 if seen else 403)
        assert ("devices" in json.loads(text)) is seen
    finally:
        await asked.server.stop()
    assert asked.times == (2 if seen else 0)


async def test_nothing_is_made_for_whoever_wants_no_page() -> None:
    asked = Asked("any")
    await asked.server.start()
    try:
        for path in ("/", "/readyz", "/metrics"):
            await asked.get(path)
    finally:
        await asked.server.stop()
    assert asked.times == 0
