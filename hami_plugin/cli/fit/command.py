"""``hami-plugin fit``: what a scheduler would decide."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from hami_plugin.cli.options import profile_names, quietly, words_of


@click.command(epilog="Example: kubectl get node gpu-1 -o yaml | hami-plugin fit pod.yaml --node - --pods pods.yaml")
@click.argument("pod", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--node", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), help="Saved nodes.")
@click.option(
    "--profile",
    metavar="NAME",
    shell_complete=profile_names,
    help="An idle machine instead, as the daemon on it would publish it: by name or file; several separated by commas.",
)
@click.option(
    "--simulate",
    metavar="PROFILE",
    shell_complete=profile_names,
    help="The same, by the name that other commands have for it.",
)
@click.option("--pods", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Saved pods that run.")
@click.option(
    "--quota", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Saved resource quotas of the pod."
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    envvar="HAMI_PLUGIN_CONFIG",
    help="The daemon's own YAML file, which says what a simulated node serves.",
)
@click.option(
    "--device-config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    envvar="CONFIG_FILE",
    help="HAMi's device-config.yaml, for resource names and defaults.",
)
@click.option(
    "--gpu-scheduler-policy",
    callback=words_of("binpack", "spread", "numa", "mutex", "topology-aware"),
    default="spread",
    show_default=True,
    help="The scheduler's order of devices.",
)
@click.option(
    "--node-scheduler-policy",
    type=click.Choice(["binpack", "spread"]),
    default="binpack",
    show_default=True,
    help="The scheduler's order of nodes.",
)
@click.option("--explain", is_flag=True, help="Every device, what admission adds, and what would be written.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def fit(explain: bool, as_json: bool, **options: Any) -> None:
    """Say which devices of a node POD (a manifest) would get; or why none, and what would make it fit.

    Nothing is changed anywhere. Exit 1 if the pod fits nowhere.
    """
    from hami_plugin.cli.fit.answer import facts, lines  # noqa: PLC0415
    from hami_plugin.cli.fit.inquiry import answered, inquiry  # noqa: PLC0415

    with quietly():
        asked = inquiry(options, os.environ)
    found = facts(asked, answered(asked))
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines(found, explain=explain)))
    sys.exit(not found["fits"])
