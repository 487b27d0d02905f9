"""The board: what a step looks like in a pipe, in colour, without colour, and on a terminal that knows no marks."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from hami_plugin.demo.board import Board, StepOutcome
from hami_plugin.demo.node import Tile

WELL = tuple(Tile(name=f"GPU{index}", listed=True, well=True, used=False) for index in range(8))
LOST = (*WELL[:7], Tile(name="GPU7", listed=True, well=False, used=False))
FIGURES = {"machine": "dgx-h100", "devices": "8", "held": "8 of 8"}


class Latin(io.StringIO):
    encoding = "latin-1"


def console(*, colour: bool = False, file: io.StringIO | None = None) -> Console:
    return Console(
        file=file or io.StringIO(),
        force_terminal=colour,
        color_system="standard" if colour else None,
        width=80 if colour else 1000,
        highlight=False,
    )


def drawn(outcome: StepOutcome, *, verbose: bool = False, on: Console | None = None, lost: bool = False) -> str:
    target = on or console()
    Board(target, verbose=verbose).step(outcome, [("lost", LOST), ("healed", WELL)] if lost else [])
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


def outcome(**changes: object) -> StepOutcome:
    facts = {"shares": 80, "containers": {"main": {"env": {"A": "1"}, "mounts": ["/a <- /b"], "devices": ["/dev/x"]}}}
    return StepOutcome(**{"step": "Register", "about": "It starts.", "seconds": 1.019, "facts": facts} | changes)  # type: ignore[arg-type]


def test_a_step_that_held_is_one_line_with_its_mark_time_and_note():
    assert drawn(outcome(note="8 devices")) == f"✓ {'Register':<30}  1.02 s 8 devices\n"


def test_a_step_that_failed_says_why_below():
    assert drawn(outcome(problem="no socket\nlast log line")).splitlines() == [
        f"✗ {'Register':<30}  1.02 s",
        "  no socket",
        "  last log line",
    ]


def test_a_step_that_the_node_cannot_show_is_neither():
    first, second = drawn(outcome(unshown="nothing limits a part", note="main on GPU7")).splitlines()

    assert first == f"- {'Register':<30}  1.02 s not shown on this node"
    assert second == "  nothing limits a part"


def test_details_come_with_verbose_only():
    assert "shares: 80" not in drawn(outcome())

    said = drawn(outcome(), verbose=True)

    assert [line.strip() for line in said.splitlines()[1:]] == [
        "It starts.",
        "shares: 80",
        "container main:",
        "A=1",
        "mount /a <- /b",
        "device /dev/x",
        "",
    ]


def test_devices_are_tiles_of_which_one_turns_red_and_heals():
    lost, healed = drawn(outcome(), lost=True).splitlines()[1:]

    assert lost == " lost    " + " ".join(f"[GPU{index} ✓]" for index in range(7)) + " [GPU7 ✗]"
    assert healed == " healed  " + " ".join(f"[GPU{index} ✓]" for index in range(8))

    in_colour = drawn(outcome(), lost=True, on=console(colour=True))
    red = re.findall(r"\x1b\[[0-9;]*41m\[(GPU\d)", in_colour)
    green = re.findall(r"\x1b\[[0-9;]*42m\[(GPU\d)", in_colour)
    assert red == ["GPU7"]
    assert green.count("GPU7") == 1
    assert len(green) == 15


def test_a_pod_on_a_device_and_a_device_that_is_not_offered_have_tiles_of_their_own():
    tiles = (
        Tile(name="GPU0", listed=True, well=True, used=True),
        Tile(name="GPU1", listed=False, well=False, used=False),
    )
    target = console()

    Board(target).step(outcome(), [("now", tiles)])

    assert target.file.getvalue().splitlines()[1] == " now     [GPU0 ●] [GPU1 -]"  # type: ignore[attr-defined]


def test_tiles_are_not_cut_by_a_narrow_terminal():
    target = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=50, highlight=False)
    rows = drawn(outcome(), lost=True, on=target).splitlines()[1:]

    assert [row.count("[GPU") for row in rows] == [4, 4, 4, 4]
    assert all(row.count("[") == row.count("]") for row in rows)


def test_more_devices_than_fit_go_on_below():
    target = console()
    tiles = tuple(Tile(name=f"NPU{index}", listed=True, well=True, used=False) for index in range(16))

    Board(target).step(outcome(), [("offered", tiles)])

    rows = target.file.getvalue().splitlines()[1:]  # type: ignore[attr-defined]
    assert [row.count("NPU") for row in rows] == [8, 8]
    assert "offered" in rows[0]
    assert "offered" not in rows[1]


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colour_marks_say_the_same(environment: dict[str, str]):
    plain = Console(file=io.StringIO(), force_terminal=True, width=80, highlight=False, _environ=environment)

    said = drawn(outcome(), lost=True, on=plain)

    assert not re.search(r"\x1b\[[0-9;]*\b[349][0-7]\b", said)
    assert "[GPU7 ✗]" in said


def test_where_the_marks_cannot_be_printed_words_stand_for_them():
    said = drawn(outcome(), lost=True, on=console(file=Latin()))

    assert said.startswith("ok Register")
    assert "[GPU7 FAILED]" in said
    assert said.isascii()


def test_the_summary_is_a_table_with_a_row_for_each_machine():
    target = console()

    Board(target).summary(
        [FIGURES, {**FIGURES, "machine": "mi300x-8"}], "Every step succeeded (8 of 8, 4.47 s).", ok=True
    )

    assert [line.rstrip() for line in target.file.getvalue().splitlines()] == [  # type: ignore[attr-defined]
        "",
        "MACHINE   DEVICES    HELD",
        "dgx-h100        8  8 of 8",
        "mi300x-8        8  8 of 8",
        "",
        "Every step succeeded (8 of 8, 4.47 s).",
    ]


async def test_the_step_that_runs_is_shown_on_a_terminal_only():
    for animated in (True, False):
        target = console(colour=True)
        async with Board(target, animated=animated).running("Register", lambda: WELL):
            pass
        assert ("Register" in target.file.getvalue()) == animated  # type: ignore[attr-defined]
