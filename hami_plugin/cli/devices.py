"""``hami-plugin discover``, ``topology`` and ``vendors``: devices, their links, and vendors' resource names."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hami_plugin.cli.console import show_table, width
from hami_plugin.cli.options import configuration_options, warnings_only
from hami_plugin.errors import HamiError


@click.command(epilog="Example: hami-plugin discover --simulate dgx-h100 --json")
@configuration_options
@click.option("--json", "as_json", is_flag=True, help="Print the whole snapshot, with links, as JSON.")
@click.option("--list-profiles", is_flag=True, help="Print the names that --simulate takes.")
def discover(as_json: bool, list_profiles: bool, **options: Any) -> None:
    """Discover this machine's devices once, and print them."""
    from hami_plugin.cli.snapshot import discover_all  # noqa: PLC0415
    from hami_plugin.cli.tables import (  # noqa: PLC0415
        DEVICE_RIGHT,
        device_rows,
        device_table,
        not_ready,
        snapshot_json,
    )
    from hami_plugin.simulation.machines import machine_names  # noqa: PLC0415

    if list_profiles:
        click.echo("\n".join(machine_names()))
        return
    with warnings_only():
        for found in discover_all(options, os.environ):
            snapshot = found.snapshot
            if as_json:
                click.echo(snapshot_json(snapshot))
            elif not snapshot.devices:
                click.echo(device_table(snapshot))
            else:
                if not snapshot.ready:
                    click.echo(not_ready(snapshot))
                unwell = [row for row, device in enumerate(snapshot.devices) if not device.health.offered]
                show_table(device_rows(snapshot), right=DEVICE_RIGHT, bad=unwell)


@click.command(epilog="Example: hami-plugin topology --simulate dgx-1v --graph dgx-1v.svg")
@configuration_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list with one entry for each vendor.")
@click.option(
    "--svg",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw a heat map of the scores. A second vendor's file is named NAME-2.svg.",
)
@click.option(
    "--graph",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw the links between devices, grouped by NUMA node. A second vendor's file is named NAME-2.svg.",
)
def topology(svg: Path | None, graph: Path | None, as_json: bool, **options: Any) -> None:
    """Print the links between devices, and the scores that schedulers read."""
    from hami_plugin.cli.pictures import heat_map_svg, link_graph_svg  # noqa: PLC0415
    from hami_plugin.cli.snapshot import discover_all  # noqa: PLC0415
    from hami_plugin.cli.tables import links_document, topology_matrix  # noqa: PLC0415

    title, documents = options["simulate"] or "this machine", []
    with warnings_only():
        for number, found in enumerate(discover_all(options, os.environ), 1):
            noun = found.vendor.noun
            if as_json:
                documents.append({"vendor": found.vendor.name, **links_document(found.snapshot, noun)})
            else:
                click.echo(topology_matrix(found.snapshot, noun, width()))
            for path, draw in ((svg, heat_map_svg), (graph, link_graph_svg)):
                if path:
                    file = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
                    file.write_text(draw(found.snapshot, title, noun), encoding="utf-8")
                    click.echo(f"Wrote {file}", err=as_json)
    if as_json:
        click.echo(json.dumps(documents, indent=2, ensure_ascii=False))


@click.command(epilog="Example: hami-plugin vendors gpumem")
@click.argument("parts", metavar="[FILTER]...", nargs=-1)
@click.option("--annotations", is_flag=True, help="Print the node's annotations instead of the resources.")
@click.option("--json", "as_json", is_flag=True, help="Print resources and annotations as JSON.")
def vendors(parts: tuple[str, ...], annotations: bool, as_json: bool) -> None:
    """Print the vendors, their device types, resources and annotations.

    FILTER is a part of a vendor's name, a device type or a resource. Several filters must all match. The exit status is
    1 if nothing matches.
    """
    from hami_plugin.cli.snapshot import vendor_facts  # noqa: PLC0415

    known = vendor_facts()
    facts = _filtered(known, parts)
    if not facts:
        near = difflib.get_close_matches(" ".join(parts), [fact["vendor"] for fact in known], n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"the vendors are {', '.join(f['vendor'] for f in known)}"
        raise HamiError(f"no vendor, device type or resource matches {' and '.join(map(repr, parts))}", hint=hint)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    keys = ("register", "handshake", "score") if annotations else ("count", "memory", "memory_percent", "cores")
    header = ("VENDOR", "DEVICE TYPE", *(_TITLES[key] for key in keys))
    rows = [
        (fact["vendor"], device_type, *(names[key] or "-" for key in keys))
        for fact in facts
        for device_type, names in fact["families"].items()
    ]
    show_table([header, *rows])


_TITLES = {
    "count": "DEVICES",
    "memory": "MEMORY",
    "memory_percent": "MEMORY IN PERCENT",
    "cores": "CORES",
    "register": "REGISTER",
    "handshake": "HANDSHAKE",
    "score": "SCORE",
}


def _texts(fact: Mapping[str, Any], device_type: str, names: Mapping[str, Any]) -> Iterator[str]:
    """What a filter is compared with: the vendor, its device type, and every name of it."""
    yield from (fact["vendor"], fact["title"], device_type)
    for value in names.values():
        yield from (value,) if isinstance(value, str) else value


def _filtered(facts: Iterable[dict[str, Any]], parts: Sequence[str]) -> list[dict[str, Any]]:
    """The vendors and device types that match all of ``parts``, ignoring case."""
    left = []
    for fact in facts:
        families = {
            device_type: names
            for device_type, names in fact["families"].items()
            if all(any(part.lower() in text.lower() for text in _texts(fact, device_type, names)) for part in parts)
        }
        if families:
            left.append({**fact, "families": families})
    return left
