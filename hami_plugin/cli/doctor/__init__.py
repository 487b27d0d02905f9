"""``hami-plugin doctor`` and ``support-bundle``: what is wrong with a node, a cluster or a pod, why, and what to do."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hami_plugin.cli.options import node_options, warnings_only
from hami_plugin.cli.pages import address

if TYPE_CHECKING:
    from hami_plugin.cli.doctor.findings import Finding

MAX_COMMAND_LINE = 1 << 16
FIRST_PROCESS = Path("/proc/1/cmdline")
DOCTORS_OWN = ("pod", "namespace", "cluster", "probe", "as_json", "url", "output")

daemons_port = click.option(
    "--url", default="", callback=address, help="The daemon's port, if it is not where the configuration says."
)


@click.command(
    short_help="Say what is wrong with a node, a cluster or a pod, and what to do.",
    epilog="Examples: kubectl exec -n hami-system POD -- hami-plugin doctor; hami-plugin doctor --cluster; "
    "hami-plugin doctor my-pod -n my-namespace. Exit statuses: 0 nothing has failed, 1 something has, 2 invalid "
    "command.",
)
@click.argument("pod", metavar="[POD]", required=False)
@click.option("--namespace", "-n", default="default", show_default=True, help="The pod's namespace.")
@click.option("--cluster", is_flag=True, help="Check the cluster in place of this node.")
@click.option(
    "--probe",
    is_flag=True,
    help="Also try to allocate more than its limit in each container of POD, by kubectl exec and the container's own "
    "Python. It takes a few hundred MiB of the container's share for a moment.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@daemons_port
@node_options
@click.pass_context
def doctor(
    context: click.Context,
    /,
    *,
    pod: str | None,
    namespace: str,
    cluster: bool,
    probe: bool,
    as_json: bool,
    **_more: Any,
) -> None:
    """Check this node, the cluster, or one pod, and change nothing.

    Each line has ✓, ! or ✗, what was seen, and the remedy; the first ✗ is the cause of what follows. In the daemon's
    pod it takes the daemon's own options. POD: why it is pending, refused or without limits, as far as its
    annotations, its Events, its node and its processes show.
    """
    if pod and cluster:
        raise click.UsageError("name a pod, or give --cluster")
    if probe and not pod:
        raise click.UsageError("--probe needs a pod")
    with warnings_only():
        subject, found = asyncio.run(_examined(context, pod, namespace, cluster=cluster, probe=probe))
    if as_json:
        click.echo(json.dumps(document(subject, found), indent=2, ensure_ascii=False))
    else:
        click.echo(f"{subject}:")
        for one in found:
            show(one)
    sys.exit(1 if any(one.mark.failed for one in found) else 0)


async def _examined(
    context: click.Context, pod: str | None, namespace: str, *, cluster: bool, probe: bool
) -> tuple[str, Sequence[Finding]]:
    from hami_plugin.cli.doctor.asking import cluster_facts, pod_facts  # noqa: PLC0415  # others need no Kubernetes
    from hami_plugin.cli.doctor.cluster import cluster_findings  # noqa: PLC0415
    from hami_plugin.cli.doctor.findings import node_findings  # noqa: PLC0415
    from hami_plugin.cli.doctor.gathering import node_facts  # noqa: PLC0415
    from hami_plugin.cli.doctor.pod import pod_findings  # noqa: PLC0415

    options, origin = as_the_daemon(context, command_line(FIRST_PROCESS))
    if cluster:
        return "cluster", cluster_findings(await cluster_facts(options, os.environ))
    if pod:
        before, slash, name = pod.rpartition("/")
        facts = await pod_facts(before if slash else namespace, name, options, os.environ, probe=probe)
        return f"pod {facts.name}", pod_findings(facts)
    found = await node_facts(options, os.environ, origin=origin, url=options["url"])
    return f"node {found.node or '(without a name)'}", node_findings(found)


@click.command(
    "support-bundle",
    short_help="Pack what doctor sees of this node, without secrets.",
    epilog="Example: kubectl exec -n hami-system POD -- hami-plugin support-bundle --output - > bundle.tar.gz",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="The file to write, which must not exist yet; - is standard output.  [default: hami-plugin-NODE.tar.gz]",
)
@daemons_port
@node_options
@click.pass_context
def support_bundle(context: click.Context, /, output: Path | None, **_more: Any) -> None:
    """Pack a node's findings, configuration, pages of the daemon, annotations and CDI specs into one archive.

    At most 16 MiB before compression. It has no tokens, keys, environments or configuration of the runtime; README.txt
    inside says what it has.
    """
    with warnings_only():
        name, content = asyncio.run(_bundle(context))
    if output == Path("-"):
        sys.stdout.buffer.write(content)
        return
    file = output or Path(f"{name}.tar.gz")
    with file.open("xb") as opened:
        os.fchmod(opened.fileno(), 0o600)
        opened.write(content)
    click.echo(f"Wrote {file} ({len(content) >> 10} KiB)", err=True)


async def _bundle(context: click.Context) -> tuple[str, bytes]:
    """The archive's name and content."""
    from hami_plugin.cli.doctor.bundle import Gathered, packed  # noqa: PLC0415
    from hami_plugin.cli.doctor.findings import node_findings  # noqa: PLC0415
    from hami_plugin.cli.doctor.gathering import daemons_files, daemons_pages, node_facts, versions  # noqa: PLC0415

    options, origin = as_the_daemon(context, command_line(FIRST_PROCESS))
    facts = await node_facts(options, os.environ, origin=origin, url=options["url"])
    name = f"hami-plugin-{facts.node or 'node'}"
    gathered = Gathered(
        facts=facts,
        document=document(f"node {facts.node}", node_findings(facts)),
        versions=versions(),
        pages=await daemons_pages(facts, options["url"]),
        files=await daemons_files(facts),
    )
    return name, packed(gathered, name)


def command_line(file: Path) -> Sequence[str]:
    """The arguments of a process; none if it cannot be read."""
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_COMMAND_LINE)
    except OSError:
        return ()
    return text.decode(errors="replace").rstrip("\0").split("\0")


def as_the_daemon(context: click.Context, arguments: Sequence[str]) -> tuple[Mapping[str, Any], str]:
    """The options to load the daemon's configuration with, and where they are from.

    In the daemon's own pod the daemon is the first process. Its options count unless this command has any of its own.
    """
    given = dict(context.params)
    sources = (context.get_parameter_source(name) for name in given if name not in DOCTORS_OWN)
    own = daemons_arguments(arguments)
    if own is None or any(source is ParameterSource.COMMANDLINE for source in sources):
        return given, ""
    from hami_plugin.cli.daemon import run  # noqa: PLC0415  # only here

    try:
        daemons = run.make_context("run", list(own)).params
    except click.ClickException:
        return given, ""
    return given | daemons, f"as process 1 runs: run {' '.join(own)}"


def daemons_arguments(arguments: Sequence[str]) -> Sequence[str] | None:
    """What follows ``run`` in a daemon's command line; None if it is another program's."""
    for place, argument in enumerate(arguments[:-1]):
        if Path(argument).name in ("hami-plugin", "hami_plugin") and arguments[place + 1] == "run":
            return arguments[place + 2 :]
    return None


def document(subject: str, found: Sequence[Finding]) -> Mapping[str, Any]:
    """The findings as JSON has them. ``cause`` is the check that failed first, or null."""
    lines = [{"check": one.check, "mark": one.mark.value, "text": one.text, "remedy": one.remedy} for one in found]
    cause = next((one.check for one in found if one.mark.failed), None)
    return {"subject": subject, "cause": cause, "findings": lines}


_STYLES = {"failed": "red", "warning": "yellow", "ok": "green"}


def show(one: Finding) -> None:
    """Print one finding, with its remedy below. Colour is dropped where the output is not a terminal."""
    colour = None if "NO_COLOR" in os.environ else _STYLES[one.mark.value]
    click.echo(f"{click.style(one.mark.sign, fg=colour)} {one.check}: {one.text}")
    if one.remedy:
        click.echo(f"    → {one.remedy}")
