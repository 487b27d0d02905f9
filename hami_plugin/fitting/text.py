"""An answer as text, for somebody who knows their pod and no line of this program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hami_plugin.fitting.facts import Facts
from hami_plugin.render import aligned

ORDERS = {
    "spread": "the emptiest first",
    "binpack": "the fullest first",
    "mutex": "only such as nobody uses",
    "numa": "one NUMA node after the other",
    "topology-aware": "those that are linked best with each other",
}


def lines(facts: Facts, *, explain: bool = False) -> Iterator[str]:
    """The answer first; the reasons, device by device, where it is no, or where they are asked for."""
    nodes = facts["nodes"]
    if not facts["fits"]:
        where = f"node {nodes[0]['node']}" if len(nodes) == 1 else f"any of {len(nodes)} nodes"
        yield f"Pod {facts['pod']} does not fit on {where}."
    else:
        others = sum(node["fits"] for node in nodes) - 1
        also = f" (it fits on {others} more)" if others else ""
        yield f"Pod {facts['pod']} fits: node {facts['node']}{also}."
    for added in facts["admission"] if explain else ():
        yield f"Admission adds to container {added['container']}: {added['limit']}: {added['value']}"
    shown = nodes if explain or not facts["fits"] else nodes[:1]
    for node in shown:
        yield ""
        yield from _node(node, explain=explain)
    for problem in facts["problems"]:
        yield f"! not read: {problem}"


def _node(node: Facts, *, explain: bool) -> Iterator[str]:
    score = f", score {node['score']:g}" if explain and node["fits"] else ""
    yield f"Node {node['node']}: {'fits' + score if node['fits'] else 'does not fit'}"
    if not node["steps"]:
        yield f"  {node.get('reason') or 'the pod asks for no device'}"
    for step in node["steps"]:
        yield from _step(step, explain=explain)
    if not node["fits"]:
        if explain:
            yield f"  In HAMi's words: {node['reason']}"
        yield from _remedies(node["remedies"])
    elif explain:
        yield "  What a scheduler writes to the pod:"
        yield from (f"    {key}: {text}" for key, text in node["annotations"].items())


def _step(step: Facts, *, explain: bool) -> Iterator[str]:
    kind = "init container" if step["init"] else "container"
    yield f"  {kind} {step['container']} asks for {_asked(step)}"
    if step["granted"] and not explain:
        granted = [device for device in step["devices"] if device["verdict"] == "granted"]
        yield from (
            f"    {line}" for line in aligned([_granted(device, step["memory_unit"]) for device in granted], right=(0,))
        )
        return
    if not step["granted"]:
        able = sum(device["verdict"] == "would do" for device in step["devices"])
        but = "".join(f"; {reason}" for reason in step["because"])
        yield f"  {able} of the node's {len(step['devices'])} devices would do, {step['count']} are wanted{but}"
        if step["said"]:
            yield f"  {step['said']}"
    if step["devices"]:
        yield from (f"    {line}" for line in _table(step["devices"], step["memory_unit"], explain=explain))
    if explain:
        yield f"  devices are tried {_order(step['order'])}"


def _order(words: str) -> str:
    """A device order in words, as far as it has only one."""
    first = ORDERS.get(words)
    return f"in the order {words!r}" + (f": {first}" if first else "")


def _table(devices: Sequence[Facts], unit: str, *, explain: bool) -> list[str]:
    """One device a line. The type is not told again and again."""
    kinds = {device["type"] for device in devices}
    columns: list[tuple[str, Callable[[Facts], str]]] = [
        ("INDEX", lambda device: str(device["index"])),
        ("NUMA", lambda device: str(device["numa"])),
        ("MEMORY FREE" if unit == "MiB" else f"MEMORY FREE ({unit})", lambda device: _left(device, "memory")),
        ("CORES FREE", lambda device: _left(device, "cores")),
        ("SHARES FREE", lambda device: _left(device, "shares")),
        *([("USED BY", lambda device: ", ".join(device["used_by"]) or "-")] if explain else []),
        *([("TYPE", lambda device: str(device["type"]))] if len(kinds) > 1 else []),
        ("ANSWER", lambda device: _mark(device, unit)),
        ("UUID", lambda device: str(device["uuid"])),
    ]
    rows = [[title for title, _ in columns], *([cell(device) for _, cell in columns] for device in devices)]
    return [*([f"all are {next(iter(kinds))}"] if len(kinds) == 1 else []), *aligned(rows, right=range(5))]


def _asked(step: Facts) -> str:
    parts = [f"{step['count']} x {step['resource']}"]
    if step["memory"]:
        parts.append(f"{step['memory']} {step['memory_unit']}")
    elif step["percent"]:
        parts.append("all memory" if step["percent"] == 100 else f"{step['percent']} % of the memory")
    if step["cores"]:
        parts.append(f"{step['cores']} cores")
    each = " of each" if step["count"] > 1 else ""
    return f"{parts[0]}{', ' + ' and '.join(parts[1:]) + each if parts[1:] else ''}"


def _granted(device: Facts, unit: str) -> tuple[str, ...]:
    cores = f"{device['cores']} cores" if device["cores"] else "no limit on cores"
    memory = f"{device['memory']} {unit}" if device["memory"] else "no limit on memory"
    return (str(device["index"]), device["uuid"], device["type"], memory, cores)


def _left(device: Facts, what: str) -> str:
    total = device[f"{what}_total"]
    return f"{device[f'{what}_free']} of {total}" if total else "-"


def _mark(device: Facts, unit: str) -> str:
    match device["verdict"]:
        case "granted":
            return f"yes: {device['memory']} {unit}, {device['cores']} cores"
        case "refused":
            return f"no: {device['why']}"
        case _:
            return "would do"


def _remedies(found: Sequence[Any]) -> Iterator[str]:
    if not found:
        yield "  Nothing that was tried makes it fit: less of one resource, one annotation less, other pods gone."
        return
    yield "  It would fit"
    yield from (f"    - {one['what']}" for one in found)
