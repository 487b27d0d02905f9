"""``hami-plugin top``: what containers use of this node's devices, now."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from hami_plugin.cli.console import show_table, terminal
from hami_plugin.cli.pages import daemons_url, debug_page

HEADER = ("DEVICE", "MODEL", "HEALTH", "POD", "CONTAINER", "MEMORY", "LIMIT", "CORES", "USED CORES", "")
RIGHT = (5, 6, 7, 8)


@click.command(epilog="Example: hami-plugin top --once")
@daemons_url
@click.option("--once", is_flag=True, help="Print the table once. So it is where the output is not a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON once. Memory is in bytes.")
@click.option("--interval", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="Seconds.")
def top(url: str, once: bool, as_json: bool, interval: float) -> None:
    """Print the devices of a node, the containers that share them, and what these use.

    A container whose usage cannot be read has the reason in the last column.
    """
    if as_json:
        click.echo(json.dumps(_usage(url), indent=2, ensure_ascii=False))
    elif once or not sys.stdout.isatty():
        _print(_usage(url))
    else:
        _follow(url, interval)


def _follow(url: str, interval: float) -> None:
    """Until Ctrl-C. The screen is left as it was."""
    console = terminal()
    with console.screen(hide_cursor=True):
        while True:
            document = _usage(url)
            console.clear()
            _print(document)
            try:
                time.sleep(interval)
            except KeyboardInterrupt:
                return


def _usage(url: str) -> Mapping[str, Any]:
    return debug_page(url, "usage", of="devices")


def _print(document: Mapping[str, Any]) -> None:
    devices, age = document["devices"], document.get("ageSeconds")
    read = "not read yet" if age is None else f"read {age:.0f} s ago"
    click.echo(f"{document['node']}: {len(devices)} devices, usage {read}")
    rows = [row for device in devices for row in _rows(device)]
    bad = [number for number, row in enumerate(rows) if row[2] not in {"healthy", ""}]
    show_table([HEADER, *rows], right=RIGHT, bad=bad)


def _rows(device: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """A row for each container, the first with the device; one row for a device that nobody has."""
    named = (f"{device['deviceType']} {device['number']}", device["model"], device["health"])
    containers = device["containers"]
    if not containers:
        used, busy = _known(device["memoryUsed"]), _busy(device["utilization"])
        yield (*named, "-", "", used, _size(device["memory"]), "", busy, device["reason"])
    for number, container in enumerate(containers):
        yield (
            *(named if number == 0 else ("", "", "")),
            f"{container['namespace']}/{container['pod']}",
            container["container"],
            _known(container["memoryUsed"]),
            _size(container["memoryLimit"]),
            f"{container['cores']:.0%}",
            _busy(container["utilization"]),
            _remark(container),
        )
    for one in device.get("outsiders") or ():
        yield (
            "",
            "",
            "",
            f"({one['who']})",
            _count(one["processes"]),
            _size(one["memory"]),
            "",
            "",
            "",
            "by the driver",
        )


def _remark(container: Mapping[str, Any]) -> str:
    state = str(container["state"])
    detail = f"{state}: {container['detail']}" if container["detail"] else state
    listed = container.get("driverProcesses")  # a daemon of before has none
    driver = "" if listed is None else f"{_size(container['driverMemory'])} in {_count(listed)} by the driver"
    return "; ".join(filter(None, ("" if state == "ok" else detail, driver)))


def _count(processes: int) -> str:
    return f"{processes} process{'' if processes == 1 else 'es'}"


def _known(count: int | None) -> str:
    return "-" if count is None else _size(count)


def _busy(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _size(count: int) -> str:
    """Bytes as MiB, the unit in which shares are asked for."""
    return f"{count / (1 << 20):.0f} MiB"
