"""``hami-plugin fit``: where a scheduler would place a pod."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from hami_plugin.cli.options import kubeconfig_option, names_of, profile_names, warnings_only


@click.command(epilog="Example: kubectl get node gpu-1 -o yaml | hami-plugin fit pod.yaml --node - --pods pods.yaml")
@click.argument("pod", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--node",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="File with nodes, - for standard input.",
)
@click.option(
    "--profile",
    metavar="NAME",
    shell_complete=profile_names,
    help="A simulated idle machine instead of saved nodes, by name or file; several separated by commas.",
)
@click.option(
    "--simulate",
    metavar="PROFILE",
    shell_complete=profile_names,
    help="The same as --profile.",
)
@click.option("--cluster", is_flag=True, help="The live cluster's nodes, pods and quotas, by the API server.")
@kubeconfig_option
@click.option("--pods", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="File with running pods.")
@click.option(
    "--quota",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with resource quotas of the pod's namespace.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    envvar="HAMI_PLUGIN_CONFIG",
    help="The daemon's own YAML file, for simulated nodes.",
)
@click.option(
    "--device-config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    envvar="CONFIG_FILE",
    help="HAMi's device-config.yaml, for resource names and defaults.",
)
@click.option(
    "--gpu-scheduler-policy",
    callback=names_of("binpack", "spread", "numa", "mutex", "topology-aware"),
    default="spread",
    show_default=True,
    help="Order in which the scheduler tries devices.",
)
@click.option(
    "--node-scheduler-policy",
    type=click.Choice(["binpack", "spread"]),
    default="binpack",
    show_default=True,
    help="Which nodes the scheduler prefers.",
)
@click.option(
    "--explain", is_flag=True, help="Print every device, the limits that admission adds, and the annotations."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def fit(explain: bool, as_json: bool, **options: Any) -> None:
    """Print which devices POD (a manifest) would get, or why none, and what would make it fit.

    Nothing is changed. The exit status is 1 if the pod fits on no node.
    """
    from hami_plugin.cli.fit.answer import facts, lines  # noqa: PLC0415
    from hami_plugin.cli.fit.inquiry import answer_inquiry, inquiry  # noqa: PLC0415

    with warnings_only():
        asked = inquiry(options, os.environ)
    found = facts(asked, answer_inquiry(asked))
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines(found, explain=explain)))
    sys.exit(not found["fits"])
