"""``hami-plugin node``: what is left on nodes of a cluster."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import click

from hami_plugin.cli.options import common_options, kubeconfig_option, warnings_only
from hami_plugin.errors import ClusterError, HamiError

if TYPE_CHECKING:
    from hami_plugin.cluster.requests import ApiCalls
    from hami_plugin.model.views import NodeView
    from hami_plugin.node_status.registration import Traces

PAGE = 500
ATTEMPTS = 5
DEADLINE_S = 15.0
SETTLE_S = 2.0
"""A daemon that still runs writes its annotations again within this time."""
LOOK_S = 2.0
"""How often a node is looked at again that is still needed."""
MAX_WAIT_S = 3600
EXEMPT = "while the chart is installed, its admission policies need your user in admissionPolicies.exemptUsers"


@click.group()
def node() -> None:
    """Nodes of the cluster: remove what is left on them."""


@node.command(
    short_help="Remove our annotations, labels, conditions and locks from nodes.",
    epilog="Example, after `helm uninstall`: hami-plugin node clean --all --wait 60. Exit statuses: 0 nothing is left, "
    "1 a node was refused or could not be changed, 2 invalid command or configuration.",
)
@click.argument("names", metavar="[NODE]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Clean all nodes of the cluster.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and change nothing.")
@click.option(
    "--force", is_flag=True, help="Also clean nodes that still offer devices, or that a scheduler has locked."
)
@click.option(
    "--wait",
    metavar="SECONDS",
    type=click.IntRange(0, MAX_WAIT_S),
    default=0,
    show_default=True,
    help="Wait so long for a daemon or a scheduler that is about to end.",
)
@kubeconfig_option
@common_options
def clean(names: tuple[str, ...], every: bool, **options: Any) -> None:
    """Remove all annotations, labels, conditions and locks that the daemon and the schedulers write on nodes.

    Run it when the daemon is gone for good: after `helm uninstall`, or before HAMi's device plugin takes over. A node
    is refused while a device plugin still offers our resources there, or while a scheduler holds its lock. A node whose
    kubelet is not heard of, because it has another name now, offers nothing. Taints are not ours, nor other labels.
    Annotations of pods stay, because running containers are accounted for by them; they go with the pods. If the
    configuration names other device types, give it here too.
    """
    if every == bool(names):
        raise click.UsageError("name the nodes, or give --all")
    if not _clean(names, options):
        sys.exit(1)


def _clean(names: tuple[str, ...], options: Mapping[str, Any]) -> bool:
    from hami_plugin.cluster.client import open_api_calls  # noqa: PLC0415  # other commands need no Kubernetes
    from hami_plugin.cluster.credentials import find_credentials  # noqa: PLC0415
    from hami_plugin.model.ports import NullObserver  # noqa: PLC0415
    from hami_plugin.node_status.registration import Traces  # noqa: PLC0415
    from hami_plugin.scheduler.extender.app import configured, families  # noqa: PLC0415

    given = {key: options[key] for key in ("config", "device_config")}
    traces = Traces.of(families(configured(given, os.environ)))

    async def run() -> bool:
        credentials = await find_credentials(options["kubeconfig"], os.environ)
        async with open_api_calls(credentials, NullObserver(), DEADLINE_S, connections=2) as calls:
            chosen = {key: options[key] for key in ("dry_run", "force")}
            wait_s = 0 if options["dry_run"] else options["wait"]
            return await _Cleaner(calls=calls, traces=traces, wait_s=wait_s, **chosen).clean(names)

    with warnings_only():
        return asyncio.run(run())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Whether a node is clean now, or would be; ``needed`` says who still needs what is left there."""

    clean: bool
    needed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cleaner:
    calls: ApiCalls
    traces: Traces
    dry_run: bool
    force: bool
    wait_s: float

    async def clean(self, names: tuple[str, ...]) -> bool:
        """Whether nothing is left on the nodes; without names, on any."""
        outcomes: dict[str, _Outcome] = {}
        async for node in self._nodes(names):
            if self._left(node):
                outcomes[node.name] = await self._one(node)
            elif names:
                click.echo(f"{node.name}: nothing to remove")
        outcomes |= await self._awaited({name: one for name, one in outcomes.items() if one.needed})
        for name, one in outcomes.items():
            if one.needed:
                click.echo(f"{name}: refused: {one.needed}; remove the daemon first, or give --force", err=True)
        cleaned = [name for name, one in outcomes.items() if one.clean and not self.dry_run]
        return await self._settled(cleaned) and all(one.clean for one in outcomes.values())

    async def _awaited(self, outcomes: dict[str, _Outcome]) -> dict[str, _Outcome]:
        """The same once nobody needs what is left on these nodes, or when the time is over."""
        until = time.monotonic() + self.wait_s
        needed = tuple(outcomes)
        for name in needed if self.wait_s else ():
            click.echo(f"{name}: waiting: {outcomes[name].needed}", err=True)
        while needed and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(LOOK_S, left))
            for name in needed:
                outcomes[name] = await self._one(await self._get(name))
            needed = tuple(name for name, one in outcomes.items() if one.needed)
        return outcomes

    def _left(self, node: NodeView) -> str:
        """What is left of us on the node, in words."""
        from hami_plugin.node_status.registration import own_labels  # noqa: PLC0415
        from hami_plugin.node_status.remediation import own_conditions  # noqa: PLC0415

        labels = (f"label {key}" for key in sorted(own_labels(node)))
        return ", ".join((*self.traces.on(node), *labels, *(f"condition {one}" for one in own_conditions(node))))

    async def _one(self, node: NodeView) -> _Outcome:
        for _ in range(ATTEMPTS):
            needed = () if self.force else self.traces.needed(node, now=datetime.now(tz=UTC))
            if needed:
                return _Outcome(clean=False, needed="; ".join(needed))
            described = self._left(node)
            if self.dry_run:
                click.echo(f"{node.name}: would remove {described}")
                return _Outcome(clean=True)
            try:
                await self._patch(node)
            except ClusterError as error:
                if error.status != HTTPStatus.CONFLICT:  # nobody has written in between
                    hint = f" ({EXEMPT})" if error.status == HTTPStatus.FORBIDDEN else ""
                    click.echo(f"{node.name}: not changed: {error}{hint}", err=True)
                    return _Outcome(clean=False)
                node = await self._get(node.name)
                continue
            click.echo(f"{node.name}: removed {described}")
            return _Outcome(clean=True)
        click.echo(f"{node.name}: not changed: it changes too often; try again", err=True)
        return _Outcome(clean=False)

    async def _settled(self, names: list[str]) -> bool:
        """Whether the nodes stay clean."""
        if not names:
            return True
        await asyncio.sleep(SETTLE_S)
        back = [(name, what) for name in names if (what := self._left(await self._get(name)))]
        for name, what in back:
            click.echo(f"{name}: something has written {what} again; find the daemon or scheduler that runs", err=True)
        return not back

    async def _nodes(self, names: tuple[str, ...]) -> AsyncIterator[NodeView]:
        from hami_plugin.cluster.client import NODES  # noqa: PLC0415
        from hami_plugin.cluster.requests import ApiCall  # noqa: PLC0415
        from hami_plugin.node_status.registration import live_node_view  # noqa: PLC0415

        for name in dict.fromkeys(names):
            yield await self._get(name)
        token = "" if not names else None
        while token is not None:
            query = {"limit": str(PAGE), **({"continue": token} if token else {})}
            page = await self.calls.json(ApiCall(verb="list", kind="nodes", path=NODES, query=query))
            for item in page.get("items") or ():
                yield live_node_view(item)
            token = (page.get("metadata") or {}).get("continue") or None

    async def _get(self, name: str) -> NodeView:
        from hami_plugin.cluster.client import node_path  # noqa: PLC0415
        from hami_plugin.cluster.requests import ApiCall  # noqa: PLC0415
        from hami_plugin.node_status.registration import live_node_view  # noqa: PLC0415

        try:
            return await self.calls.object(
                ApiCall(verb="get", kind="nodes", path=node_path(name), name=name), live_node_view
            )
        except ClusterError as error:
            if error.not_found:
                raise HamiError(f"there is no node {name}", hint="kubectl get nodes lists them") from error
            raise

    async def _patch(self, node: NodeView) -> None:
        from hami_plugin.cluster.client import node_path  # noqa: PLC0415
        from hami_plugin.cluster.requests import ApiCall  # noqa: PLC0415
        from hami_plugin.node_status.registration import own_labels  # noqa: PLC0415
        from hami_plugin.node_status.remediation import own_conditions, remove_conditions  # noqa: PLC0415

        found = self.traces.on(node)
        meta: dict[str, Any] = {"annotations": dict.fromkeys(found), "resourceVersion": node.resource_version}
        if labels := own_labels(node):
            meta["labels"] = dict.fromkeys(labels)
        path = node_path(node.name)
        if conditions := own_conditions(node):  # first: what follows has the node's version, and is checked against it
            status = {
                "status": {"conditions": remove_conditions(conditions)},
                "metadata": {"resourceVersion": node.resource_version},
            }
            whole = ApiCall(
                verb="patch", kind="nodes/status", path=f"{path}/status", name=node.name, body=status, strategic=True
            )
            meta["resourceVersion"] = (await self.calls.json(whole))["metadata"]["resourceVersion"]
        if found or labels:
            await self.calls.json(
                ApiCall(verb="patch", kind="nodes", path=path, name=node.name, body={"metadata": meta})
            )
