"""The command line: each command parses, builds, calls and prints."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import closing
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any

import click

from cdi.errors import CdiError
from hami_plugin.cli.cdi import cdi
from hami_plugin.cli.options import configuration_options, quietly, words_of
from hami_plugin.cli.scheduler import scheduler
from hami_plugin.errors import ConfigError, HamiError

USAGE_ERROR = 2
MOST_PROBLEMS = 50
DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"


class Commands(click.Group):
    """Turns the project's own errors into one readable message and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            count = len(error.problems)
            click.echo(f"The configuration cannot be used ({count} problem{'s'[: count > 1]}):", err=True)
            for problem in error.problems[:MOST_PROBLEMS]:
                click.echo(f"  - {problem}", err=True)
            if count > MOST_PROBLEMS:
                click.echo(f"  and {count - MOST_PROBLEMS} more", err=True)
            ctx.exit(USAGE_ERROR)
        except (HamiError, CdiError) as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(1)
        except OSError as error:
            if error.filename is None:
                raise
            click.echo(f"Error: {error.filename}: {error.strerror}", err=True)
            ctx.exit(1)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Try it without hardware: hami-plugin demo, or hami-plugin topology --simulate dgx-1v",
)
def main() -> None:
    """Share accelerators on this Kubernetes node, speaking HAMi's wire protocol."""


main.add_command(cdi)
main.add_command(scheduler)


@main.command(epilog="Example: hami-plugin run --node-name node-1 --config /etc/hami-plugin/config.yaml")
@configuration_options
@click.option("--node-name", help="This node's name in Kubernetes. [env: NODE_NAME]")
@click.option("--kubelet-dir", type=click.Path(path_type=Path), help="Directory of kubelet.sock and of our sockets.")
@click.option("--pod-resources-socket", type=click.Path(path_type=Path), help="The kubelet's PodResources socket.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Default: $KUBECONFIG, else the pod's own account.")
@click.option("--hook-path", type=click.Path(path_type=Path), help="HAMi's hook path on the host. [env: HOOK_PATH]")
@click.option("--state-dir", type=click.Path(path_type=Path), help="Where the journal and the health memory are kept.")
@click.option("--http", metavar="HOST:PORT", help="Address of /healthz, /readyz and /metrics.  [default: 0.0.0.0:9394]")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
@click.option("--log-format", type=click.Choice(["auto", "json", "console"]), help="[default: auto]")
def run(kubeconfig: Path | None, **options: Any) -> None:
    """Run the daemon on this node until it is told to stop (SIGTERM)."""
    import structlog  # noqa: PLC0415

    from hami_plugin.app import Process, serve  # noqa: PLC0415  # other commands need neither gRPC nor Kubernetes
    from hami_plugin.host.paths import HostPaths  # noqa: PLC0415
    from hami_plugin.startup import opened, plan  # noqa: PLC0415
    from hami_plugin.telemetry.logs import configure  # noqa: PLC0415

    ready = plan(options, os.environ)
    settings = ready.configuration.settings
    host = HostPaths(hook=settings.hook_path, hook_view=settings.hook_path)
    logs = configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr)
    with closing(logs):
        for warning in ready.configuration.warnings:
            structlog.get_logger().warning("configuration", warning=warning)
        process = Process(
            configuration=ready.configuration,
            vendors=opened(ready, host),
            kubeconfig=kubeconfig,
            host=host,
            version=distribution_version("hami-plugin"),
            log_lines_dropped=lambda: logs.dropped,
        )
        asyncio.run(serve(process))


@main.command(epilog="Example: hami-plugin discover --simulate dgx-h100 --json")
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


@main.command(epilog="Example: hami-plugin topology --simulate dgx-1v --svg dgx-1v.svg")
@configuration_options
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Also draw a heat map of the scores.")
def topology(svg: Path | None, **options: Any) -> None:
    """Print how the devices are linked, and the scores that schedulers read."""
    from hami_plugin.glance import look  # noqa: PLC0415
    from hami_plugin.render import heat_map_svg, topology_matrix  # noqa: PLC0415

    with quietly():
        for snapshot in look(options, os.environ):
            click.echo(topology_matrix(snapshot))
            if svg:
                svg.write_text(heat_map_svg(snapshot, title=options["simulate"] or "this machine"), encoding="utf-8")
                click.echo(f"Drawn in {svg}")


@main.command(epilog="Example: hami-plugin vendors --json")
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


@main.command(epilog="Example: hami-plugin conformance tests/vectors/*_fit.jsonl.xz")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--vendor", help="Only the questions about this vendor's families.")
@click.option("--json", "as_json", is_flag=True, help="Every disagreement, as JSON.")
@click.option(
    "--differences",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The page that lists the differences on purpose.  [default: docs/differences.md of this source tree]",
)
def conformance(files: tuple[Path, ...], vendor: str | None, as_json: bool, differences: Path | None) -> None:
    """Ask our code questions that HAMi's code has answered. Exit 1 if an answer differs without a written reason."""
    from hami_plugin.conformance import report  # noqa: PLC0415
    from hami_plugin.conformance.catalog import Catalog  # noqa: PLC0415
    from hami_plugin.conformance.questions import read  # noqa: PLC0415
    from hami_plugin.conformance.run import about, asked, documented_in  # noqa: PLC0415
    from hami_plugin.vendor import load_vendor  # noqa: PLC0415

    catalog = Catalog()
    words = catalog.words(load_vendor(vendor).name) if vendor else ()
    documented = documented_in((differences or DIFFERENCES).read_text(encoding="utf-8"))
    outcomes = {file.name: asked(about(read(file), words), catalog, documented) for file in files}
    if as_json:
        click.echo(json.dumps(report.as_json(outcomes), indent=2))
    else:
        click.echo("\n".join(report.lines(outcomes)))
    sys.exit(any(outcome.unexplained for outcome in outcomes.values()))


@main.command(epilog="Example: kubectl get node gpu-1 -o yaml | hami-plugin fit pod.yaml --node - --pods pods.yaml")
@click.argument("pod", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--node", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), help="Saved nodes.")
@click.option("--profile", metavar="NAME", help="An idle machine instead: a profile of any vendor, by name or file.")
@click.option("--simulate", metavar="PROFILE", help="The same by the vendor's driver, where it can be simulated.")
@click.option("--pods", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Saved pods that run.")
@click.option(
    "--quota", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Saved resource quotas of the pod."
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
    from hami_plugin.fitting import text  # noqa: PLC0415
    from hami_plugin.fitting.facts import facts  # noqa: PLC0415
    from hami_plugin.fitting.inquiry import answered  # noqa: PLC0415
    from hami_plugin.fitting.sources import inquiry  # noqa: PLC0415

    with quietly():
        asked = inquiry(options, os.environ)
    found = facts(asked, answered(asked))
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(text.lines(found, explain=explain)))
    sys.exit(not found["fits"])


@main.command(epilog="Example: hami-plugin version")
def version() -> None:
    """Print the version."""
    click.echo(f"hami-plugin {distribution_version('hami-plugin')} (Python {sys.version.split()[0]})")


@main.command(epilog="Example: hami-plugin demo --profile dgx-1v")
@click.option(
    "--profile",
    default="dgx-h100",
    show_default=True,
    help="The simulated machine. Several of different vendors, parted by commas, make one node.",
)
@click.option("--all", "everywhere", is_flag=True, help="On every machine that can be simulated, as a table.")
@click.option("--json", "as_json", is_flag=True, help="The whole outcome as JSON.")
@click.option("--keep", is_flag=True, help="Keep the working directory, with the daemon's log.")
def demo(profile: str, everywhere: bool, as_json: bool, keep: bool) -> None:
    """Run the real daemon against a simulated machine, kubelet and API server, and show what it does."""
    from hami_plugin.demo import play, tour  # noqa: PLC0415

    with quietly():
        held = asyncio.run(tour() if everywhere else play(profile, as_json=as_json, keep=keep))
    sys.exit(0 if held else 1)
