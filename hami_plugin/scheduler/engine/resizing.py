"""Whether a container that runs may have other amounts of its devices, by what others have and by the quota."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import PodView
from hami_plugin.protocol.decisions import Question, claims, granted
from hami_plugin.protocol.resizes import Amounts, larger
from hami_plugin.scheduler.engine.devices import NodeInfo, Quota
from hami_plugin.scheduler.engine.node_info import occupied
from hami_plugin.scheduler.engine.pod_info import PodInfo, pod_info
from hami_plugin.scheduler.engine.quotas import PREFIX, used
from hami_plugin.sdk import Family


def resized(
    pod: PodView,
    wanted: Amounts,
    families: Sequence[Family],
    *,
    node_info: NodeInfo,
    others: Iterable[PodInfo],
    quota: Quota,
) -> Mapping[str, str]:
    """The pod's decision with the larger of what it has and what is ``wanted``. ``WireError`` says why it may not.

    ``others`` are the node's other pods, ``quota`` is the namespace's without this pod.
    """
    for family in families:
        question = _question(family)
        if question.allocated not in pod.annotations:
            continue
        having = {claim.container.name: claim for claim in claims(pod, question) if not claim.container.alone}
        if not wanted.container and len(having) > 1:
            raise WireError(f"several containers have devices: {', '.join(sorted(having))}", hint="say which")
        claim = having.get(wanted.container) if wanted.container else next(iter(having.values()), None)
        if claim is None:
            continue
        grants = [larger(grant, wanted.of(grant)) for grant in claim.grants]
        changes = {question.allocated: granted(pod, question, claim.container.name, grants)}
        after = pod_info(replace(pod, annotations={**pod.annotations, **changes}), families)
        if after is None:
            raise WireError("no scheduler has placed it")
        left = occupied(node_info, families, [*(one.held for one in others), after.held])
        _require_devices(family, left, grants)
        _require_quota(families, after, quota)
        return changes
    which = f"container {wanted.container}" if wanted.container else "no container of it"
    raise WireError(f"{which} has devices that a scheduler has decided", hint="name one that has some")


def _question(family: Family) -> Question:
    names = family.resources
    return Question(
        resource=names.count,
        to_allocate=family.annotations.to_allocate,
        allocated=family.annotations.allocated,
        also=tuple(units.resource for units in names.units),
    )


def _require_devices(family: Family, node_info: NodeInfo, grants: Sequence[Grant]) -> None:
    """``node_info`` is the node less what everybody would have."""
    pool = node_info.pools.get(family.device_type)
    states = {state.uuid: state for state in pool.states} if pool else {}
    for grant in grants:
        state = states.get(grant.uuid)
        if state is None:
            raise WireError(f"its node does not offer {grant.uuid} now", hint="ask again when it does")
        if not state.info.health:
            raise WireError(f"{grant.uuid} is not healthy", hint="ask again when it is")
        for what, unit, taken, total in (
            ("memory", "MiB", state.memory, state.info.devmem),
            ("cores", "%", state.cores, state.info.devcore),
        ):
            if taken > total > 0:
                raise WireError(
                    f"{grant.uuid} has {total} {unit} of {what}, and {taken} would be given", hint="ask for less"
                )


def _require_quota(families: Sequence[Family], after: PodInfo, quota: Quota) -> None:
    factors = {family.resources.memory: family.resources.memory_factor for family in families}
    for name, amount in used(families, [after.held]).items():
        factor = factors.get(name, 1)
        if not quota.allows(name, amount, factor):
            limit = quota.limits[name] * max(1, factor)
            raise WireError(
                f"{PREFIX}{name}: the pod would have {amount}, and {quota.used.get(name, 0)} of {limit} are used",
                hint="ask for less, or raise the quota",
            )
