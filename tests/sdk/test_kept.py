"""How long an answer is kept, and what ends that."""

from __future__ import annotations

import pytest

from hami_plugin.sdk.tools import Kept, LastKnown, ToolError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_is_kept_for_its_time_and_for_what_it_is_about() -> None:
    clock, asked = Clock(), iter(range(100))
    kept = Kept(lambda: next(asked), every=10, clock=clock)

    assert [kept.answer("a"), kept.answer("a")] == [0, 0]
    assert kept.answer("b") == 1
    clock.now += 9.9
    assert kept.answer("b") == 1
    clock.now += 0.1
    assert kept.answer("b") == 2


def test_an_error_is_not_kept_and_neither_is_the_answer_before_it() -> None:
    answers: list[object] = ["well", OSError("not well"), "well again"]

    def ask() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    clock = Clock()
    kept = Kept(ask, every=1, clock=clock)

    assert kept.answer(()) == "well"
    clock.now += 1
    with pytest.raises(OSError, match="not well"):
        kept.answer(())
    assert kept.answer(()) == "well again"


def test_what_was_known_stays_while_the_tool_fails_and_an_empty_answer_is_no_news() -> None:
    now, told = [0.0], [("a",), ToolError("it is gone"), (), ("b",)]

    def ask() -> tuple[str, ...]:
        answer = told.pop(0)
        if isinstance(answer, ToolError):
            raise answer
        return answer

    kept = LastKnown(ask, (), every=30.0, clock=lambda: now[0])
    seen = []
    for now[0] in (0.0, 29.0, 30.0, 60.0, 90.0):
        seen.append((kept.answer(), kept.problem))

    assert seen == [(("a",), ""), (("a",), ""), (("a",), "it is gone"), (("a",), ""), (("b",), "")]
