"""``hami-plugin discover``, ``topology`` and ``vendors``: what is here, how it is linked, and what it is called."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from hami_plugin.cli.console import show_table, width
from hami_plugin.cli.options import configuration_options, quietly
from hami_plugin.errors import HamiError


@click.command(epilog="Example: hami-plugin discover --simulate dgx-h100 --json")
@configuration_options
@click.option("--json", "as_json", is_flag=True, help="The whole snapshot, links included, as JSON.")
@click.option("--list-profiles", is_flag=True, help="Print the names that --simulate takes.")
def discover(as_json: bool, list_profiles: bool, **options: Any) -> None:
    """Look at this machine's devices once, and print them."""
    from hami_plugin.cli.snapshot import look  # noqa: PLC0415
    from hami_plugin.render import DEVICE_RIGHT, device_rows, device_table, not_ready, snapshot_json  # noqa: PLC0415
    from hami_plugin.simulation.machines import machine_names  # noqa: PLC0415

    if list_profiles:
        click.echo("\n".join(machine_names()))
        return
    with quietly():
        for seen in look(options, os.environ):
            snapshot = seen.snapshot
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
@click.option("--json", "as_json", is_flag=True, help="As JSON: a list with one entry for each vendor.")
@click.option(
    "--svg",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw a heat map of the scores. A second vendor's is beside it, as NAME-2.svg.",
)
@click.option(
    "--graph",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw the links between the devices, NUMA node by NUMA node. A second vendor's is NAME-2.svg.",
)
def topology(svg: Path | None, graph: Path | None, as_json: bool, **options: Any) -> None:
    """Print how the devices are linked, and the scores that schedulers read."""
    from hami_plugin.cli.snapshot import look  # noqa: PLC0415
    from hami_plugin.render import heat_map_svg, link_graph_svg, links_document, topology_matrix  # noqa: PLC0415

    title, documents = options["simulate"] or "this machine", []
    with quietly():
        for number, seen in enumerate(look(options, os.environ), 1):
            noun = seen.vendor.noun
            if as_json:
                documents.append({"vendor": seen.vendor.name, **links_document(seen.snapshot, noun)})
            else:
                click.echo(topology_matrix(seen.snapshot, noun, width()))
            for path, draw in ((svg, heat_map_svg), (graph, link_graph_svg)):
                if path:
                    file = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
                    file.write_text(draw(seen.snapshot, title, noun), encoding="utf-8")
                    click.echo(f"Drawn in {file}", err=as_json)
    if as_json:
        click.echo(json.dumps(documents, indent=2, ensure_ascii=False))


@click.command(epilog="Example: hami-plugin vendors gpumem")
@click.argument("words", metavar="[FILTER]...", nargs=-1)
@click.option("--annotations", is_flag=True, help="The node's annotations in place of the resources.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, resources and annotations.")
def vendors(words: tuple[str, ...], annotations: bool, as_json: bool) -> None:
    """Print the vendors, their device types, resources and annotations.

    FILTER is a part of a vendor's name, of a device type or of a resource; of several, each must be found. Exit 1 if
    nothing has it.
    """
    from hami_plugin.cli.snapshot import vendor_facts  # noqa: PLC0415

    known = vendor_facts()
    facts = _filtered(known, words)
    if not facts:
        near = difflib.get_close_matches(" ".join(words), [fact["vendor"] for fact in known], n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"the vendors are {', '.join(f['vendor'] for f in known)}"
        raise HamiError(f"no vendor, device type or resource has {' and '.join(map(repr, words))} in it", hint=hint)
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


def _filtered(facts: Iterable[dict[str, Any]], words: Sequence[str]) -> list[dict[str, Any]]:
    """The vendors with those of their device types that have all of ``words`` somewhere; upper and lower case alike."""
    left = []
    for fact in facts:
        families = {
            device_type: names
            for device_type, names in fact["families"].items()
            if all(
                any(
                    part.lower() in text.lower()
                    for text in (fact["vendor"], fact["title"], device_type, *names.values())
                )
                for part in words
            )
        }
        if families:
            left.append({**fact, "families": families})
    return left
