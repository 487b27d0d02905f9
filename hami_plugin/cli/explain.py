"""``hami-plugin explain``: what is wrong with a device, whom it hit, whom it spared, and when it heals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from hami_plugin.cli.pages import daemons_url, debug_page
from hami_plugin.errors import HamiError

MAX_NAMED = 10


@click.command(epilog="Example: hami-plugin explain 3")
@click.argument("device")
@daemons_url
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(device: str, url: str, as_json: bool) -> None:
    """Explain the health of DEVICE: a UUID or its beginning, a number, or VENDOR/NUMBER.

    The last fault names the containers that had the device at that moment.
    """
    document = debug_page(url, "faults", of="devices")
    found = find_device(document["devices"], device)
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        click.echo("\n".join(explain_device(found)))


def find_device(devices: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The device of that name. ``HamiError`` where there is none, or several."""
    vendor, slash, number = name.rpartition("/")
    of_vendor = [one for one in devices if not slash or one["vendor"] == vendor]
    numbered = [one for one in of_vendor if one["number"] == number]
    named = [one for one in devices if one["uuid"] == name] or [
        one for one in devices if len(name) > 3 and str(one["uuid"]).lower().startswith(name.lower())
    ]
    found = numbered or named
    known = ", ".join(f"{one['vendor']}/{one['number']}" for one in (found or devices)[:MAX_NAMED])
    if not found:
        raise HamiError(f"no device is called {name!r}", hint=f"known are {known or 'none'}")
    if len(found) > 1:
        raise HamiError(f"{name!r} means {len(found)} devices", hint=f"say which: {known}")
    return found[0]


def explain_device(device: Mapping[str, Any]) -> Iterator[str]:
    """A device in lines."""
    why = " ".join(filter(None, (device["reason"], device["message"])))
    yield f"{device['vendor']}/{device['number']} {device['model']} ({device['uuid']})"
    yield f"  health:  {device['health']}{f', {why}' if why else ''}"
    yield f"  held by: {_names(device['holders'])}"
    fault = device["fault"]
    if fault:
        moment = datetime.fromtimestamp(fault["time"], UTC)
        yield f"  fault:   {fault['reason']} at {moment:%Y-%m-%d %H:%M:%S} UTC, {fault['message']}"
        yield f"  it hit:  {_names(fault['holders'])}"
        yield f"  spared:  {_names(fault['others'])}"
        if fault["harmless"]:
            yield "  so:      an application's own fault; the device stays in service"
    if not device["offered"]:
        yield "  so:      nothing more is placed on it; who has it keeps it, and may fail"
    if device["outlook"]:
        yield f"  heals:   {device['outlook']}"


def _names(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return (", ".join(names[:MAX_NAMED]) or "nobody") + (f" and {more} more" if more > 0 else "")
