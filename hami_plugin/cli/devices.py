"""``hami-plugin discover``, ``topology`` and ``vendors``: what is here, how it is linked, and what it is called."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from hami_plugin.cli.options import configuration_options, quietly


@click.command(epilog="Example: hami-plugin discover --simulate dgx-h100 --json")
@configuration_options
@click.option("--json", "as_json", is_flag=True, help="The whole snapshot, links included, as JSON.")
@click.option("--list-profiles", is_flag=True, help="Print the names that --simulate takes.")
def discover(as_json: bool, list_profiles: bool, **options: Any) -> None:
    """Look at this machine's devices once, and print them."""
    from hami_plugin.glance import look  # noqa: PLC0415
    from hami_plugin.render import device_table, snapshot_json  # noqa: PLC0415
    from hami_plugin.simulation.machines import machine_names  # noqa: PLC0415

    if list_profiles:
        click.echo("\n".join(machine_names()))
        return
    with quietly():
        for snapshot in look(options, os.environ):
            click.echo(snapshot_json(snapshot) if as_json else device_table(snapshot))


@click.command(epilog="Example: hami-plugin topology --simulate dgx-1v --svg dgx-1v.svg")
@configuration_options
@click.option(
    "--svg",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw a heat map of the scores. A second vendor's is beside it, as NAME-2.svg.",
)
def topology(svg: Path | None, **options: Any) -> None:
    """Print how the devices are linked, and the scores that schedulers read."""
    from hami_plugin.glance import look  # noqa: PLC0415
    from hami_plugin.render import heat_map_svg, topology_matrix  # noqa: PLC0415

    with quietly():
        for number, snapshot in enumerate(look(options, os.environ), 1):
            click.echo(topology_matrix(snapshot))
            if svg:
                file = svg if number == 1 else svg.with_stem(f"{svg.stem}-{number}")
                file.write_text(heat_map_svg(snapshot, title=options["simulate"] or "this machine"), encoding="utf-8")
                click.echo(f"Drawn in {file}")


@click.command(epilog="Example: hami-plugin vendors --json")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def vendors(as_json: bool) -> None:
    """Print the vendors, their resources and annotations."""
    from hami_plugin.glance import vendor_facts  # noqa: PLC0415

    facts = vendor_facts()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    for fact in facts:
        click.echo(f"{fact['vendor']} ({fact['title']})")
        for key, value in fact["families"].items():
            click.echo(f"  {key}")
            for name, text in value.items():
                click.echo(f"    {name:16} {text}")
