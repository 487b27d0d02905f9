"""``hami-plugin partitions``: what this node's cards are cut into, for whom, and what becomes of it next."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from hami_plugin.cli.console import show_table
from hami_plugin.cli.pages import daemons_url, debug_page

HEADER = ("CARD", "PROFILE", "PLACE", "STATE", "AGE", "OWNER", "UUID", "")
LEFT = ("CARD", "PROFILE", "PLACES LEFT")
MODES = ("CARD", "MODE", "WANTED", "WAITS FOR")
PLANNED = ("", "CARD", "PROFILE", "PLACE", "OWNER", "WHY")
BAD = frozenset({"failed", "leaked", "lost"})


@click.command(epilog="Example: hami-plugin partitions --plan")
@daemons_url
@click.option("--plan", is_flag=True, help="Print what will be made and destroyed, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON. Ages are in seconds, places in slices of the card.")
def partitions(url: str, plan: bool, as_json: bool) -> None:
    """Print the partitions of a node's cards: their states, owners, ages and places, and what is left of each card.

    A foreign one was made by another tool; it takes its place, and is never touched.
    """
    document = debug_page(url, "partitions", of="partitions")
    found: Sequence[Mapping[str, Any]] = document["partitions"]
    modes: Sequence[Mapping[str, Any]] = document.get("modes", ())
    if plan:
        found = [one for one in found if one["plan"]]
        modes = [one for one in modes if one["waits"]]
    if as_json:
        click.echo(json.dumps({**document, "partitions": found, "modes": modes}, indent=2, ensure_ascii=False))
        return
    for resource, problem in sorted(document["problems"].items()):
        click.echo(f"{resource}: {problem}", err=True)
    if plan:
        _print_plan(found, modes)
    else:
        _print(document["node"], found, document["placeable"], modes)


def _print(
    node: str,
    found: Sequence[Mapping[str, Any]],
    left: Sequence[Mapping[str, Any]],
    modes: Sequence[Mapping[str, Any]],
) -> None:
    click.echo(f"{node}: {len(found)} partitions")
    bad = [number for number, one in enumerate(found) if one["state"] in BAD]
    if found:
        show_table([HEADER, *map(_row, found)], right=(4,), bad=bad)
    if left:
        click.echo()
        show_table([LEFT, *((one["card"], one["profile"], str(one["left"])) for one in left)], right=(2,))
    if modes:
        click.echo()
        show_table([MODES, *((one["card"], one["mode"], _wish(one), one["waits"] or "-") for one in modes)])


def _wish(one: Mapping[str, Any]) -> str:
    return "on" if one["on"] else "off"


def _print_plan(found: Sequence[Mapping[str, Any]], modes: Sequence[Mapping[str, Any]]) -> None:
    if not found and not modes:
        click.echo("nothing to make or to destroy")
        return
    show_table([PLANNED, *_planned(found, modes)])


def _planned(found: Sequence[Mapping[str, Any]], modes: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    for one in found:
        yield one["plan"], one["card"], one["profile"], _place(one), one["owner"] or "-", one["reason"] or one["state"]
    for one in modes:
        yield f"switch {_wish(one)}", one["card"], f"{one['mode']} mode", "-", "-", one["waits"]


def _row(one: Mapping[str, Any]) -> Sequence[str]:
    age = "-" if one["state"] == "reserved" else _age(one["age"])
    return (
        one["card"],
        one["profile"],
        _place(one),
        one["state"],
        age,
        one["owner"] or "-",
        one["uuid"] or "-",
        one["reason"],
    )


def _place(one: Mapping[str, Any]) -> str:
    return f"{one['start']}+{one['size']}"


def _age(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{left:02}s" if minutes else f"{left}s"
