"""``kubectl hami``: what kubectl's user asks about devices of a live cluster. It changes nothing.

The same program as ``hami-plugin``, under the name that kubectl looks for (``kubectl-hami``), and its own group there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hami_plugin.cli.console import show_table
from hami_plugin.cli.fit import fit as fit_command
from hami_plugin.cli.main import Commands
from hami_plugin.cli.options import common_options, kubeconfig_option, warnings_only

if TYPE_CHECKING:
    from hami_plugin.cli.live import HolderKey, Holding, LiveCluster, Measured, NodeDevices
    from hami_plugin.sdk import Family

STATUS = ("NODE", "TYPE", "MODEL", "DEVICES", "HEALTHY", "SHARES", "MEMORY", "CORES", "")
TOP = ("NODE", "DEVICE", "POD", "CONTAINER", "MEMORY", "LIMIT", "CORES", "USED CORES")
MIB = 1 << 20


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="kubectl finds it as `kubectl hami` where `kubectl-hami` is in the PATH: pip install hami-plugin.",
)
def kubectl() -> None:
    """Ask about accelerators of a live cluster, with the rights of your kubeconfig. Nothing is changed."""


def main() -> None:
    """``kubectl-hami``."""
    kubectl(prog_name="kubectl hami")


def _families(options: Mapping[str, Any]) -> tuple[Family, ...]:
    from hami_plugin.scheduler.extender.app import configured, families  # noqa: PLC0415  # only when asked

    return families(configured({key: options[key] for key in ("config", "device_config")}, os.environ))


def _cluster(options: Mapping[str, Any]) -> LiveCluster:
    from hami_plugin.cli.live import read_cluster  # noqa: PLC0415

    return asyncio.run(read_cluster(options["kubeconfig"], os.environ))


@kubectl.command(epilog="Example: kubectl hami status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@kubeconfig_option
@common_options
def status(as_json: bool, **options: Any) -> None:
    """Print each node's devices, their health, and how much of them pods have.

    The exit status is 1 if a node has devices that are unhealthy or that its kubelet does not offer.
    """
    from hami_plugin.cli.live import overview  # noqa: PLC0415

    with warnings_only():
        known = _families(options)
        found = list(overview(_cluster(options), known))
    wrong = [number for number, one in enumerate(found) if one.problem or one.healthy < one.devices]
    if as_json:
        click.echo(json.dumps([one.document for one in found], indent=2, ensure_ascii=False))
    elif found:
        show_table([STATUS, *map(_status_row, found)], right=(3, 4, 5, 6, 7), bad=wrong)
    else:
        click.echo("no node has devices; on one that should, run hami-plugin doctor in the daemon's pod", err=True)
    sys.exit(1 if wrong or not found else 0)


def _status_row(one: NodeDevices) -> Sequence[str]:
    return (
        one.node,
        one.device_type,
        ", ".join(one.models),
        str(one.devices),
        str(one.healthy),
        _of(one.shares),
        f"{_of(one.memory)} {one.unit}",
        _of(one.cores),
        one.problem,
    )


def _of(amounts: tuple[int, int]) -> str:
    return f"{amounts[0]} of {amounts[1]}"


@kubectl.command(epilog="Example: kubectl hami top gpu-1")
@click.argument("node", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print JSON. Used memory is in bytes.")
@kubeconfig_option
@common_options
def top(node: str, as_json: bool, **options: Any) -> None:
    """Print the containers that have devices, of all nodes or of NODE, and what they use.

    Usage is what the daemons measure, read through the API server: it needs the right to get pods/proxy.
    """
    from hami_plugin.cli.live import holdings, read_usage  # noqa: PLC0415

    with warnings_only():
        known, cluster = _families(options), _cluster(options)
        found = list(holdings(cluster, known, node))
        here = {one.node for one in found}
        daemons = {name: pod for name, pod in cluster.daemons.items() if name in here}
        used, why = asyncio.run(read_usage(options["kubeconfig"], os.environ, daemons))
    for name in sorted(here - daemons.keys()):
        click.echo(f"{name}: no daemon of hami-plugin runs there, so usage is not known", err=True)
    for name, text in sorted(why.items()):
        click.echo(f"{name}: usage is not known: {text}", err=True)
    if as_json:
        click.echo(json.dumps([_top_document(one, used) for one in found], indent=2, ensure_ascii=False))
        return
    if found:
        show_table([TOP, *_top_rows(found, used)], right=(4, 5, 6, 7))
    else:
        click.echo(f"no pod has devices{f' on node {node}' if node else ''}", err=True)


def _used(one: Holding, used: Mapping[HolderKey, Measured]) -> Measured | None:
    return used.get((one.namespace, one.pod, one.container, one.uuid))


def _top_document(one: Holding, used: Mapping[HolderKey, Measured]) -> Mapping[str, Any]:
    found = _used(one, used)
    measured = {"memoryUsed": found.memory if found else None, "utilization": found.busy if found else None}
    return {**asdict(one), **measured}


def _top_rows(found: Sequence[Holding], used: Mapping[HolderKey, Measured]) -> Iterator[Sequence[str]]:
    for one in found:
        seen = _used(one, used)
        yield (
            one.node,
            f"{one.device_type} {one.uuid if one.index is None else one.index}",
            f"{one.namespace}/{one.pod}",
            one.container,
            "-" if seen is None or seen.memory is None else f"{seen.memory / MIB:.0f} MiB",
            f"{one.memory} MiB" if one.memory else "all",
            str(one.cores) if one.cores else "-",
            "-" if seen is None or seen.busy is None else f"{seen.busy:.0%}",
        )


@kubectl.command(epilog="Example: kubectl hami why my-pod -n my-namespace")
@click.argument("pod")
@click.option("--namespace", "-n", default="default", show_default=True, help="The pod's namespace.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@kubeconfig_option
@common_options
def why(pod: str, namespace: str, as_json: bool, **options: Any) -> None:
    """Say why POD waits, was refused, or runs without limits, as its objects and the scheduler's rules show.

    Its node shows more: hami-plugin doctor POD in the daemon's pod there. Exit status 1 if something has failed.
    """
    from hami_plugin.cli.doctor import document, show  # noqa: PLC0415
    from hami_plugin.cli.doctor.asking import pod_facts  # noqa: PLC0415
    from hami_plugin.cli.doctor.pod import pod_findings  # noqa: PLC0415

    before, slash, name = pod.rpartition("/")
    with warnings_only():
        facts = asyncio.run(pod_facts(before if slash else namespace, name, options, os.environ, on_its_node=False))
    found = pod_findings(facts)
    if as_json:
        click.echo(json.dumps(document(f"pod {facts.name}", found), indent=2, ensure_ascii=False))
    else:
        click.echo(f"pod {facts.name}:")
        for one in found:
            show(one)
    sys.exit(1 if any(one.mark.failed for one in found) else 0)


@kubectl.command(epilog="Example: kubectl hami fit pod.yaml --explain")
@click.argument("pod", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--explain", is_flag=True, help="Print every device, what admission adds, and the annotations.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@kubeconfig_option
@common_options
@click.pass_context
def fit(context: click.Context, /, **options: Any) -> None:
    """Print which node and devices of the live cluster POD (a manifest) would get, or why none.

    As `hami-plugin fit --cluster`, which has more options. The exit status is 1 if the pod fits on no node.
    """
    context.invoke(fit_command, cluster=True, **options)
