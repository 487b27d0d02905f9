"""``hami-plugin doctor`` and ``support-bundle``: what is wrong with a node, a cluster or a pod, why, and what to do.

A bundle is chosen field by field out of what was gathered, cut to a size, and without secrets.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hami_plugin.cli.doctor.findings import ApiFacts, NodeFacts, Unavailable, items, member, text_in, texts
from hami_plugin.cli.options import node_options, warnings_only
from hami_plugin.cli.pages import address
from hami_plugin.model.views import Json
from hami_plugin.protocol.keys import OWN

if TYPE_CHECKING:
    from hami_plugin.cli.doctor.findings import Finding


MAX_FILE = 1 << 20
MAX_BUNDLE = 16 << 20
CUT = b"\n[cut here]\n"
HAMI = "hami.io/"
NODE_STATUS = ("capacity", "allocatable", "conditions", "nodeInfo")
POD_STATUS = ("phase", "reason", "message", "startTime", "conditions")
NOTES = """\
What hami-plugin has gathered of one node. Nothing of it was sent anywhere.

It has no tokens, keys, certificates, environments, Secrets or ConfigMaps, nor the container runtime's configuration.
Of nodes and pods it has names, states, requested resources, and the annotations of HAMi and of this project. What
looks like a credential in a text is replaced by [removed]. Look through it all the same before you give it away.
"""
_SECRETS = (
    re.compile(rb"()-----BEGIN [A-Z0-9 ]{1,40}-----.*?(?:-----END [A-Z0-9 ]{1,40}-----|\Z)", re.DOTALL),
    re.compile(rb"(?i)((?:bearer|basic) )[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(rb"()eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    re.compile(rb"(://)[^/\s:@]{1,256}:[^/\s@]{1,256}(?=@)"),
    re.compile(rb"""(?i)((?:password|passwd|secret|token|apikey)["']?\s{0,4}[:=]\s{0,4}["']?)[^\s"',;&}]{4,}"""),
)
"""PEM blocks, headers, tokens as JSON Web Tokens are, users in addresses, and assignments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """``pages`` are the daemon's, by name; ``files`` are small files of the daemon's own."""

    facts: NodeFacts
    document: Mapping[str, Any]
    versions: Mapping[str, str]
    pages: Mapping[str, bytes | Unavailable] = field(default_factory=dict)
    files: Mapping[str, bytes | Unavailable] = field(default_factory=dict)


def without_secrets(content: bytes) -> bytes:
    """The text with what looks like a credential replaced."""
    for pattern in _SECRETS:
        content = pattern.sub(rb"\1[removed]", content)
    return content


def packed(gathered: Gathered, name: str) -> bytes:
    """A compressed archive of ``MAX_BUNDLE`` bytes at most before compression, each file of ``MAX_FILE``."""
    target = io.BytesIO()
    left = MAX_BUNDLE
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for path, content in _entries(gathered):
            kept = _cut(without_secrets(content), min(MAX_FILE, left))
            left -= len(kept)
            entry = tarfile.TarInfo(str(PurePosixPath(name) / path))
            entry.size, entry.mode = len(kept), 0o644
            archive.addfile(entry, io.BytesIO(kept))
    return target.getvalue()


def _cut(content: bytes, most: int) -> bytes:
    return content if len(content) <= most else content[: max(0, most - len(CUT))] + CUT[: max(0, most)]


def _entries(gathered: Gathered) -> Iterator[tuple[str, bytes]]:
    facts = gathered.facts
    yield "README.txt", NOTES.encode()
    yield "doctor.json", _json(gathered.document)
    yield "versions.json", _json(gathered.versions)
    yield "configuration.json", _json(facts.effective)
    if isinstance(facts.api, ApiFacts):
        yield "node.json", _json(_node(facts.api.node or {}))
        yield "pods.json", _json([_pod(pod) for pod in facts.api.pods])
    for folder, found in (("daemon", gathered.pages), ("files", gathered.files)):
        for name, content in found.items():
            if isinstance(content, Unavailable):
                yield f"{folder}/{name}.missing.txt", f"{content.text}\n".encode()
            else:
                yield f"{folder}/{name}", content


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n").encode(errors="replace")


def _node(node: Json) -> Json:
    status = member(node, "status")
    return {
        "metadata": _metadata(node),
        "spec": {"unschedulable": member(node, "spec").get("unschedulable", False)},
        "status": {key: status[key] for key in NODE_STATUS if key in status},
    }


def _pod(pod: Json) -> Json:
    """What a decision needs of a pod: no environment, no command, no volume."""
    spec, status = member(pod, "spec"), member(pod, "status")
    return {
        "metadata": _metadata(pod),
        "spec": {
            **{key: text_in(spec, key) for key in ("nodeName", "schedulerName", "runtimeClassName")},
            "initContainers": _containers(spec, "initContainers"),
            "containers": _containers(spec, "containers"),
        },
        "status": {key: status[key] for key in POD_STATUS if key in status},
    }


def _containers(spec: Json, key: str) -> Sequence[Json]:
    return [{"name": text_in(one, "name"), "resources": member(one, "resources")} for one in items(spec, key)]


def _metadata(item: Json) -> Json:
    meta = member(item, "metadata")
    annotations = texts(member(meta, "annotations"))
    return {
        **{key: text_in(meta, key) for key in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")},
        "annotations": {key: text for key, text in annotations.items() if _ours(key)},
    }


def _ours(key: str) -> bool:
    return key.startswith((OWN, HAMI)) or f".{HAMI}" in key


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
