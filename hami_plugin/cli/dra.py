"""``hami-plugin dra``: what a node publishes for ResourceClaims, what is prepared there, and why a claim waits."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hami_plugin.cli.console import show_table
from hami_plugin.cli.options import configuration_options, kubeconfig_option, warnings_only
from hami_plugin.cli.pages import daemons_url, debug_page, forget_claim
from hami_plugin.errors import ClusterError, HamiError

if TYPE_CHECKING:
    from hami_plugin.cluster.requests import ApiCalls
    from hami_plugin.dra.slices import Offered
    from hami_plugin.model.views import Json

DEADLINE_S = 15.0
PAGE = 500
MAX_PAGES = 40
PUBLISHED = ("DEVICE", "TYPE", "INDEX", "MEMORY", "CORES", "SLOTS", "PRODUCT")
PREPARED = ("CLAIM", "STATE", "REQUEST", "DEVICE", "MEMORY", "CORES", "SLOTS", "CONTAINER")
CLAIM = click.argument("claim", metavar="[NAMESPACE/]CLAIM")


@click.group(name="dra")
def dra() -> None:
    """Devices by ResourceClaims: what is published, what is prepared, and why a claim waits."""


@dra.command(epilog="Example: hami-plugin dra slices --simulate hgx-a100-4gpu --json")
@configuration_options
@click.option("--node-name", envvar="NODE_NAME", default="this-node", show_default=True, help="The node's name.")
@click.option("--json", "as_json", is_flag=True, help="Print the ResourceSlices as JSON, as they would be created.")
def slices(node_name: str, as_json: bool, **options: Any) -> None:
    """Print what would be published of this machine's devices with `frontEnd: dra`.

    Nothing is written. Where limits are not enforced, or no claim could ask for a part, devices are given out whole.
    """
    found = list(_published(options, node_name))
    if as_json:
        click.echo(json.dumps([one for each in found for one in each.documents], indent=2))
        return
    for each in found:
        count = sum(len(one["spec"].get("devices", ())) for one in each.documents)
        click.echo(f"{each.driver}: {count} devices in {len(each.documents)} ResourceSlices")
        if each.note:
            click.echo(each.note, err=True)
        rows = [_device_row(device) for one in each.documents for device in one["spec"].get("devices", ())]
        if rows:
            show_table([PUBLISHED, *rows], right=(2, 3, 4, 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    """A vendor's slices. ``note`` says what is not in them."""

    driver: str
    documents: tuple[dict[str, Any], ...]
    note: str = ""


def _published(options: Mapping[str, Any], node: str) -> Iterator[_Published]:
    from hami_plugin.cli.snapshot import snapshot_of  # noqa: PLC0415  # other commands need no driver
    from hami_plugin.daemon.startup import decide_handover, open_drivers, plan  # noqa: PLC0415
    from hami_plugin.dra import cuts, sets  # noqa: PLC0415
    from hami_plugin.dra.slices import (  # noqa: PLC0415
        Pool,
        PoolContents,
        devices,
        driver_name,
        offered_devices,
        offered_with_links,
        writes,
    )
    from hami_plugin.host.paths import HostFiles, HostPaths  # noqa: PLC0415

    with warnings_only():
        ready = plan(options, {**os.environ, "NODE_NAME": node})
        own_settings = ready.configuration.settings
        hook = own_settings.hook_path
        host = HostPaths(node=node, hook=hook, hook_view=hook, prepared=bool(ready.simulated))
        for served in open_drivers(ready, host):
            try:
                snapshot = snapshot_of(served.driver)
            finally:
                served.driver.close()
            settings, _ = decide_handover(served.settings.model_copy(update={"front_end": "dra"}), own_settings)
            every: list[Offered] = []
            wanted, notes = PoolContents(), []
            families = served.vendor.families(settings)
            in_sets = getattr(settings, "linked_devices", "") == "sets"
            for number, family in enumerate(families):
                own = replace(
                    snapshot,
                    devices=tuple(one for one in snapshot.devices if one.family == family.resources.device_type),
                )
                side = family.node.partitions
                if side and side.by_claims and own.devices and not side.sized:
                    tool = side.open(HostFiles(paths=host))
                    profiles = {one.uuid: tool.profiles(one.uuid) for one in own.devices}
                    cut = list(cuts.card_profiles(family, offered_devices(family, own), profiles))
                    wanted = wanted.with_part(cuts.pool(cut))
                elif in_sets and sets.can_make_sets(cards := offered_devices(family, own), own.links):
                    counted = sets.Counted(cards=cards, number=number)
                    linked = sets.linked_sets(cards, own.links)
                    wanted = wanted.with_part(sets.pool(counted, own.links, linked))
                elif own.devices and not (found := offered_with_links(family, own)):
                    notes.append(f"{family.resources.device_type}: no claim can ask for what these cards are cut into")
                elif own.devices:
                    every += found
            sides = [(family.resources.device_type, side) for family in families if (side := family.node.partitions)]
            if refused := [device_type for device_type, side in sides if not side.by_claims]:
                every, wanted = [], PoolContents()
                notes = [f"the daemon refuses frontEnd: dra, as it cuts {' and '.join(refused)} cards for containers"]
            driver = driver_name(served.vendor.name)
            wanted = wanted.with_part(PoolContents(devices=devices(every)))
            documents = writes(Pool(driver=driver, node=node, node_uid=""), wanted, {}).creates
            yield _Published(driver=driver, documents=documents, note="; ".join(notes))


def _device_row(device: Json) -> Sequence[str]:
    attributes, capacity = device["attributes"], device.get("capacity", {})
    amounts = (capacity.get(name, {}).get("value", "-") for name in ("memory", "cores", "slots"))
    product = attributes.get("productName", {}).get("string", "-")
    whole = () if device.get("allowMultipleAllocations") else (f"{product} (whole)",)
    return (
        device["name"],
        attributes["type"]["string"],
        attributes["members"]["string"] if "members" in attributes else str(attributes["index"]["int"]),
        *amounts,
        *(whole or (product,)),
    )


@dra.command(epilog="Example: hami-plugin dra claims")
@daemons_url
@click.option("--json", "as_json", is_flag=True, help="Print JSON. Memory is in MiB, cores in percent.")
def claims(url: str, as_json: bool) -> None:
    """Print the claims that are prepared on the daemon's node, by pod, and those that it refuses."""
    document = debug_page(url, "claims", of="claims")
    if as_json:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    if not document["drivers"]:
        click.echo(f"{document['node']}: no vendor's devices go by claims (frontEnd: dra)")
        return
    for driver in document["drivers"]:
        state = "registered" if driver["registered"] else "not registered"
        where = f"{driver['devices']} devices in {driver['slices']} slices, generation {driver['generation']}"
        click.echo(f"{document['node']}: {driver['driver']} {state}, {where}")
        for problem in (*driver["problems"], *filter(None, [driver.get("limitation")])):
            click.echo(f"  {problem}", err=True)
    rows = [row for one in document["claims"] for row in _claim_rows(one)]
    if rows:
        show_table([PREPARED, *rows], right=(4, 5, 6))
    for one in document["refused"]:
        click.echo(f"{one['namespace']}/{one['name']} refused {one['seconds']:.0f} s ago: {one['why']}")


def _claim_rows(one: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    containers = ", ".join(f"{to['namespace']}/{to['pod']}/{to['container']}" for to in one["containers"]) or "-"
    for device in one["devices"]:
        yield (
            f"{one['namespace']}/{one['name']}",
            one["state"],
            device["request"],
            device["device"],
            f"{device['memory']}Mi" if device["memory"] else "-",
            str(device["cores"] or "-"),
            str(device["slots"]),
            containers,
        )


@dra.command(
    epilog="Example: hami-plugin dra explain team/small-gpu. Exit statuses: 0 the claim is prepared, or allocated and "
    "not refused, 1 it waits, is refused, or could not be read."
)
@CLAIM
@daemons_url
@kubeconfig_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(claim: str, url: str, kubeconfig: Path | None, as_json: bool) -> None:
    """Print why a ResourceClaim is pending or refused: which device of which node lacks what.

    It reads the cluster with your rights, and the daemon at --url where that serves the claim's node. Selectors in CEL
    are not evaluated.
    """
    namespace, _, name = claim.rpartition("/")
    with warnings_only():
        found = asyncio.run(_explained(namespace or "default", name, url, kubeconfig))
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        click.echo(f"ResourceClaim {found['claim']}: {found['state']}")
        for line in found["why"]:
            click.echo(f"  {line}")
    if found["state"] not in {"prepared", "allocated"}:
        sys.exit(1)


async def _explained(namespace: str, name: str, url: str, kubeconfig: Path | None) -> dict[str, Any]:
    from hami_plugin.cluster.client import SLICES, open_api_calls  # noqa: PLC0415  # other commands need no Kubernetes
    from hami_plugin.cluster.credentials import find_credentials  # noqa: PLC0415
    from hami_plugin.dra.explanation import requests_of, selection, verdicts  # noqa: PLC0415
    from hami_plugin.model.ports import NullObserver  # noqa: PLC0415

    credentials = await find_credentials(kubeconfig, os.environ)
    async with open_api_calls(credentials, NullObserver(), DEADLINE_S, connections=2) as calls:
        document = await _claim(calls, namespace, name)
        answer = {"claim": f"{namespace}/{name}", "uid": document["metadata"].get("uid", "")}
        if (document.get("status") or {}).get("allocation"):
            return {**answer, **_of_allocated(document, url)}
        names = {str(asked_of.get("deviceClassName", "")) for _name, asked_of in requests_of(document)}
        classes = {one: selection(await _class(calls, one), one) for one in sorted(names)}
        everything = await _listed(calls, "resourceslices", SLICES)
        others = await _listed(calls, "resourceclaims", f"{SLICES.rpartition('/')[0]}/resourceclaims")
        found = verdicts(document, classes, everything, others)
    lines = [str(one) for one in found]
    absent = sorted({one.driver for one in classes.values()} - {each["spec"]["driver"] for each in everything})
    lines += [
        f"no node publishes devices of driver {one}: is the DeviceClass right, and frontEnd: dra set?" for one in absent
    ]
    wanted = {name for name, _asked in requests_of(document)}
    if wanted and all(any(one.fits for one in found if one.request == each) for each in wanted):
        lines.append("capacity is there: the scheduler waits for a pod, or for its other rules and the selectors")
    return {**answer, "state": "pending", "why": lines}


def _of_allocated(document: Json, url: str) -> dict[str, Any]:
    """The state of a claim that has devices: by the daemon of its node, if that is the one at the address."""
    from hami_plugin.dra.explanation import consumers_of, results_of  # noqa: PLC0415

    results, uid = results_of(document), document["metadata"].get("uid")
    lines = [f"request {one.get('request')} has {one.get('device')} of {one.get('pool')}" for one in results]
    lines += [f"it is for pod {name}" for name in consumers_of(document)] or ["no pod reserves it"]
    if document["metadata"].get("deletionTimestamp"):
        lines.append("it is being deleted, and stays until its pods have ended")
    try:
        daemon = debug_page(url, "claims", of="claims")
    except HamiError as error:
        return {"state": "allocated", "why": [*lines, f"whether it is prepared is not known: {error}"]}
    pools = {str(one.get("pool")) for one in results}
    if daemon["node"] not in pools:
        where = ", ".join(sorted(pools))
        return {
            "state": "allocated",
            "why": [*lines, f"whether it is prepared is known on {where}; {url} is {daemon['node']}"],
        }
    if refused := [one for one in daemon["refused"] if one["uid"] == uid]:
        return {"state": "refused", "why": [*lines, *(f"{one['reason']}: {one['why']}" for one in refused)]}
    if any(one["uid"] == uid and one["state"] == "prepared" for one in daemon["claims"]):
        return {"state": "prepared", "why": lines}
    drivers = {str(one.get("driver")) for one in results}
    problems = [problem for one in daemon["drivers"] if one["driver"] in drivers for problem in one["problems"]]
    waiting = problems or ["the kubelet has not asked for it yet"]
    return {"state": "refused" if problems else "allocated", "why": [*lines, *waiting]}


async def _claim(calls: ApiCalls, namespace: str, name: str) -> Json:
    from hami_plugin.cluster.client import claim_path  # noqa: PLC0415
    from hami_plugin.cluster.requests import ApiCall  # noqa: PLC0415

    path = claim_path(namespace, name)
    try:
        return await calls.json(ApiCall(verb="get", kind="resourceclaims", path=path, name=f"{namespace}/{name}"))
    except ClusterError as error:
        if error.not_found:
            raise HamiError(
                f"there is no ResourceClaim {namespace}/{name}",
                hint="kubectl get resourceclaims -A lists them; a pod's own are in its status.resourceClaimStatuses",
            ) from error
        raise


async def _class(calls: ApiCalls, name: str) -> Json:
    """A DeviceClass; nothing where it cannot be read: its name is then taken for its driver's."""
    from urllib.parse import quote  # noqa: PLC0415

    from hami_plugin.cluster.client import SLICES  # noqa: PLC0415
    from hami_plugin.cluster.requests import ApiCall  # noqa: PLC0415

    path = f"{SLICES.rpartition('/')[0]}/deviceclasses/{quote(name, safe='')}"
    try:
        return await calls.json(ApiCall(verb="get", kind="deviceclasses", path=path, name=name))
    except ClusterError as error:
        if error.status:
            return {}
        raise


async def _listed(calls: ApiCalls, kind: str, path: str) -> list[Json]:
    from hami_plugin.cluster.requests import ApiCall  # noqa: PLC0415

    found: list[Json] = []
    token = ""
    for _ in range(MAX_PAGES):
        query = {"limit": str(PAGE), **({"continue": token} if token else {})}
        page = await calls.json(ApiCall(verb="list", kind=kind, path=path, query=query))
        found += page.get("items") or ()
        token = (page.get("metadata") or {}).get("continue") or ""
        if not token:
            return found
    raise HamiError(f"there are more than {PAGE * MAX_PAGES} {kind}")


@dra.command(
    epilog="Example: hami-plugin dra forget team/small-gpu. Exit statuses: 0 nothing is prepared for it any more, "
    "1 somebody has it, or the daemon could not release it."
)
@CLAIM
@daemons_url
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def forget(claim: str, url: str, as_json: bool) -> None:
    """Release what is prepared for a claim that the kubelet has forgotten.

    CLAIM may be a UID. It is refused while a pod of the node has the claim, or may have it. The daemon does the same
    every ten minutes by itself.
    """
    document = debug_page(url, "claims", of="claims")
    namespace, _, name = claim.rpartition("/")
    own = [
        one
        for one in document["claims"]
        if claim == one["uid"] or (one["name"] == name and one["namespace"] == (namespace or "default"))
    ]
    if not own:
        known = ", ".join(f"{one['namespace']}/{one['name']}" for one in document["claims"][:5]) or "none"
        raise HamiError(f"nothing is prepared for {claim} on {document['node']}", hint=f"prepared are: {known}")
    uids = {one["uid"] for one in own}
    if len(uids) > 1:
        raise HamiError(f"{claim} is prepared more than once", hint=f"name one by its UID: {', '.join(sorted(uids))}")
    answer = forget_claim(url, uids.pop())
    if as_json:
        click.echo(json.dumps({"claim": claim, **answer}, indent=2))
    elif answer["forgotten"]:
        click.echo(f"{claim}: released")
    else:
        click.echo(f"{claim}: not released: {answer['why']}", err=True)
    if not answer["forgotten"]:
        sys.exit(1)
