"""An answer as plain data: what is told in words, and given to other programs as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hami_plugin.fitting.inquiry import Answer, Inquiry, written
from hami_plugin.fitting.remedies import remedies
from hami_plugin.fitting.words import because, overall, unit
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView
from hami_plugin.protocol.register import refused
from hami_plugin.scheduler.engine.fit import Granted, Refused
from hami_plugin.scheduler.engine.nodes import Scored
from hami_plugin.scheduler.engine.pods import Step, Unplaced
from hami_plugin.scheduler.engine.reasons import Reason
from hami_plugin.scheduler.engine.states import DeviceState
from hami_plugin.sdk import Family

Facts = Mapping[str, Any]


def facts(inquiry: Inquiry, answer: Answer) -> Facts:
    """The chosen node first, then the other nodes where the pod fits, best first, then the rest."""
    best = answer.choice.best
    fitting = [_fitting(inquiry, answer.pod, one) for one in reversed(answer.fitting)]
    return {
        "pod": answer.pod.key,
        "fits": best is not None,
        "node": best.site.node.name if best else None,
        "admission": _added(inquiry.pod, answer.pod),
        "nodes": [*fitting, *(_failed(inquiry, one) for one in answer.failed)],
        "problems": list(answer.problems),
    }


def _fitting(inquiry: Inquiry, pod: PodView, scored: Scored) -> Facts:
    placed = scored.placed
    return {
        "node": scored.name,
        "fits": True,
        "score": scored.score,
        "steps": [_step(inquiry, step) for step in placed.steps],
        "annotations": dict(written(inquiry, pod, placed)),
    }


def _failed(inquiry: Inquiry, unplaced: Unplaced) -> Facts:
    return {
        "node": unplaced.site.node.name,
        "fits": False,
        "reason": unplaced.why,
        "steps": [_step(inquiry, step) for step in unplaced.steps],
        "remedies": [
            {"what": one.what, "container": one.container, "limits": dict(one.limits or {})}
            for one in remedies(inquiry, unplaced)
        ],
    }


def _added(before: PodView, after: PodView) -> list[Facts]:
    """Limits that admission adds or changes."""
    pairs = zip(before.containers, after.containers, strict=True)
    return [
        {"container": one.name, "limit": name, "value": text}
        for old, one in pairs
        for name, text in one.limits.items()
        if old.limits.get(name) != text
    ]


def _step(inquiry: Inquiry, step: Step) -> Facts:
    demand, outcome = step.context.demand, step.outcome
    family = next(family for family in inquiry.families if family.word == demand.word)
    granted = {grant.uuid: grant for grant in outcome.grants} if isinstance(outcome, Granted) else {}
    refused = {verdict.state.uuid: verdict.reason for verdict in outcome.verdicts}
    return {
        "container": step.container.name,
        "init": step.container.init,
        "family": demand.word,
        "resource": family.resources.count,
        "count": demand.count,
        "memory": demand.memory,
        "percent": demand.percent,
        "cores": demand.cores,
        "memory_unit": unit(family),
        "order": ",".join(step.context.words),
        "granted": isinstance(outcome, Granted),
        "said": _said(step),
        "because": [overall(reason) for reason in _of_the_node(outcome)],
        "devices": [
            {**_device(state, family), **_verdict(state, step, family, granted, refused.get(state.uuid))}
            for state in sorted(step.states, key=lambda state: (state.index, state.uuid))
        ],
    }


def _said(step: Step) -> str:
    """What the node says that it refuses of the family, where that is why it refuses here."""
    said = refused(step.context.node.annotations, step.context.demand.word)
    whole = isinstance(step.outcome, Refused) and Reason.WHOLE_ONLY in {*step.outcome.reasons, *step.outcome.seen[1]}
    return str(said) if said and (whole or said.what == "all") else ""


def _of_the_node(outcome: Granted | Refused) -> list[Reason]:
    """The reasons that no device has by itself, but for their number."""
    if isinstance(outcome, Granted):
        return []
    told = {verdict.reason for verdict in outcome.verdicts}
    return [reason for reason in outcome.reasons if reason not in told and reason != Reason.TOO_FEW]


def _device(state: DeviceState, family: Family) -> Facts:
    info = state.info
    return {
        "index": info.index,
        "uuid": info.id,
        "type": info.type,
        "numa": info.numa,
        "memory_free": max(0, state.free_memory),
        "memory_total": info.devmem,
        "cores_free": family.resources.core_count(max(0, state.free_cores)),
        "cores_total": family.resources.core_count(info.devcore),
        "shares_free": max(0, info.count - state.slots),
        "shares_total": info.count,
        "used_by": sorted({tenant.name for tenant in state.tenants}),
    }


def _verdict(
    state: DeviceState, step: Step, family: Family, granted: Mapping[str, Grant], reason: Reason | None
) -> Facts:
    if state.uuid in granted:
        grant = granted[state.uuid]
        return {"verdict": "granted", "memory": grant.memory, "cores": family.resources.core_count(grant.cores)}
    if reason is None:
        return {"verdict": "would do"}
    return {"verdict": "refused", "reason": str(reason), "why": because(reason, state, step.context, family)}
