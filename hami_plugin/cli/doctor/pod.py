"""Why a pod is pending, refused or without limits, along its way from admission to its processes: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hami_plugin.allocation.allocator import question_of
from hami_plugin.cli.doctor.findings import Finding, Unavailable, failed, in_order, items, member, ok, text_in, warning
from hami_plugin.cli.doctor.probe import Probed, isolation
from hami_plugin.errors import RefusalReason, WireError
from hami_plugin.model.views import ContainerView, Json, PodView
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_FAILED, PHASE_SUCCESS
from hami_plugin.protocol.pods import DecidedShare, decided_shares, requesting_containers
from hami_plugin.scheduler.engine.admission import DEFAULT_SCHEDULER, IGNORE
from hami_plugin.scheduler.engine.devices import Reason, parse_summary, plain
from hami_plugin.sdk import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingVerdict:
    """What the scheduler's rules say now: the nodes where the pod fits, and why not, by node."""

    fitting: tuple[str, ...] = ()
    failed: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedProcess:
    """A process of a container that was given the limiter's library. ``limited``: it has mapped it."""

    pid: int
    name: str
    container: str
    limited: bool
    musl: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """A pod, as JSON and as a view; neither if there is none. ``scheduler`` is the one that pods with devices go to,
    and ``serves_others``: nodes also serve pods that no scheduler of HAMi's has decided.

    ``events`` are oldest first. ``verdict`` is asked for a pod without a node; ``usage``, containers as
    ``/debug/usage`` has them, and ``processes`` for one that runs; ``probed`` only if that was wished for.
    """

    name: str
    raw: Json | Unavailable | None
    view: PodView | None = None
    families: tuple[Family, ...] = ()
    scheduler: str = ""
    serves_others: bool = False
    events: tuple[Json, ...] | Unavailable = ()
    verdict: SchedulingVerdict | Unavailable | None = None
    usage: tuple[Json, ...] | Unavailable | None = None
    processes: tuple[LimitedProcess, ...] | Unavailable | None = None
    probed: tuple[Probed, ...] | None = None


WAIT = "wait until pods end there, ask for less, or add nodes; hami-plugin fit explains each device"
SELECT = "look at the pod's annotations that select devices"
DOCTOR = "run hami-plugin doctor in the daemon's pod on that node"
PENDING: Mapping[str, str] = {
    **dict.fromkeys(
        (Reason.NO_SLOT, Reason.NO_MEMORY, Reason.NO_CORES, Reason.CORES_EXHAUSTED, Reason.EXCLUSIVE), WAIT
    ),
    **dict.fromkeys((Reason.TYPE_MISMATCH, Reason.UUID_MISMATCH, Reason.NUMA, Reason.MODE), SELECT),
    **dict.fromkeys((Reason.UNHEALTHY, Reason.SICK), DOCTOR),
    Reason.TOO_FEW_ON_NODE: "ask for fewer devices: no node has so many",
    Reason.QUOTA: "raise the namespace's ResourceQuota, or end other pods of it",
    Reason.WHOLE_ONLY: "ask for whole devices",
}
REFUSED: Mapping[RefusalReason, str] = {
    RefusalReason.INVALID_REQUEST: "report it with the daemon's log",
    RefusalReason.UNKNOWN_DEVICE: "delete the pod; its controller's next one is a new try",
    RefusalReason.UNHEALTHY_DEVICE: "delete the pod; its controller's next one is a new try",
    RefusalReason.NO_PENDING_POD: "a static pod cannot have devices; else see the API server in the daemon's /readyz",
    RefusalReason.COUNT_MISMATCH: "check whether the pod was changed after its decision",
    RefusalReason.DEVICE_MISMATCH: "delete the pod; if it recurs, look for another plugin or scheduler",
    RefusalReason.AMBIGUOUS: "delete the pod; its controller's next one is a new try",
    RefusalReason.BAD_ANNOTATION: "compare the scheduler's version with registerFormat",
    RefusalReason.EXCEEDS_REQUEST: "find who wrote the annotation; no scheduler did",
    RefusalReason.OVERCOMMITTED: "find who wrote the decision; under HAMi's scheduler, set overcommitCheck: hami",
    RefusalReason.NOT_SCHEDULED: "check the webhook (doctor --cluster), or set unannotatedPods: serve",
    RefusalReason.DEVICE_SHARED: "let the scheduler place it",
    RefusalReason.NOT_PREPARED: DOCTOR,
    RefusalReason.WRONG_HOLDER: "delete the pod; its container never ran",
    RefusalReason.HOLDER_UNKNOWN: "wait; if it lasts, mount the kubelet's device-plugins directory",
}
"""What docs/operations.md says of each."""
STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})


def pod_findings(facts: PodFacts) -> tuple[Finding, ...]:
    """Everything about a pod, causes first."""
    if isinstance(facts.raw, Unavailable):
        return (Finding.of("api server", facts.raw),)
    if facts.raw is None or facts.view is None:
        return (failed("pod", "there is none of this name", "kubectl get pods -A; give its namespace with -n"),)
    pod, raw = facts.view, facts.raw
    wanted = [
        (family, containers)
        for family in facts.families
        if (
            containers := requesting_containers(
                pod, family.resources.count, *(one.resource for one in family.resources.units)
            )
        )
    ]
    return in_order(
        (
            *_request(facts, pod, wanted),
            *(_admission(facts, pod) if wanted else ()),
            *(_verdict(facts, pod) if wanted else ()),
            *(_binding(facts, pod) if wanted else ()),
            *_refusal(facts, raw),
            *_decision(pod, wanted),
            *(_region(facts, pod) if wanted else ()),
            *(_processes(facts, pod) if wanted else ()),
            *_isolation(facts),
        )
    )


Wanted = Sequence[tuple[Family, Sequence[ContainerView]]]


def _request(facts: PodFacts, pod: PodView, wanted: Wanted) -> Iterator[Finding]:
    if pod.deleted:
        yield warning("pod", "is being deleted")
    names = {name: family for family in facts.families for name in family.resources.names.values() if name}
    if misplaced := sorted(names.keys() & pod.annotations.keys()):
        text = f"{', '.join(misplaced)} stands among the annotations, where it asks for nothing"
        yield failed("request", text, "write it under resources.limits of a container")
    if not wanted and (alone := sorted(_uncounted(facts, pod))):
        yield ok("request", f"asks for {', '.join(alone)}, which the kubelet alone hands out")
    elif not wanted:
        others = sorted(
            {name for one in pod.containers for name in (*one.limits, *one.requests) if name in names}
            - {family.resources.count for family in facts.families}
        )
        only = f" (only {', '.join(others)}, which the kubelet does not count)" if others else ""
        remedy = "name a vendor's count resource under limits (hami-plugin vendors); the webhook adds it where it may"
        yield failed("request", f"no container asks for a device that is known here{only}", remedy)
    for family, containers in wanted:
        count = family.resources.count
        yield ok("request", ", ".join(f"{one.name} asks for {one.amount(count)} {count}" for one in containers))


def _uncounted(facts: PodFacts, pod: PodView) -> Iterator[str]:
    """Resources of known vendors that no family lists, such as a profile that cards were cut into."""
    known = {name for family in facts.families for name in family.resources.names.values() if name}
    domains = {name.partition("/")[0] for name in known}
    for name in dict.fromkeys(name for one in pod.containers for name in (*one.limits, *one.requests)):
        if name not in known and name.partition("/")[0] in domains:
            yield name


def _admission(facts: PodFacts, pod: PodView) -> Iterator[Finding]:
    if pod.labels.get(IGNORE[0]) == IGNORE[1]:
        yield failed("admission", f"its label {IGNORE[0]}: {IGNORE[1]} keeps the webhook off", "remove the label")
    elif pod.annotations.get(ASSIGNED_NODE) or pod.scheduler == facts.scheduler:
        yield ok("admission", f"scheduler {pod.scheduler or facts.scheduler} decides about it")
    elif pod.scheduler in ("", DEFAULT_SCHEDULER):
        text = f"scheduler {DEFAULT_SCHEDULER} has it: the webhook has not seen the pod"
        mark = warning if facts.serves_others else failed
        yield mark("admission", text, "see hami-plugin doctor --cluster, then delete the pod and create it anew")
    else:
        text = f"scheduler {pod.scheduler} has it, and ours is {facts.scheduler}"
        yield warning("admission", text, "name ours, or call its extender from that scheduler")


def _verdict(facts: PodFacts, pod: PodView) -> Iterator[Finding]:
    if pod.node or pod.terminal:
        return
    message = _last(facts.events, ("FilteringFailed", "BindingFailed")) or _last(facts.events, ("FailedScheduling",))
    verdict = facts.verdict
    why = dict(verdict.failed or {}) if isinstance(verdict, SchedulingVerdict) else {}
    remedy = next((PENDING[plain(one)] for text in (message, *why.values()) for one in _reasons(text)), "")
    if message:
        yield failed("scheduler", message, remedy or WAIT)
    if isinstance(verdict, Unavailable):
        yield warning("rules", f"were not asked: {verdict.text}", verdict.remedy)
    elif verdict and verdict.fitting:
        text = f"place it on {', '.join(verdict.fitting[:4])} now"
        if message:
            yield warning("rules", text, "kube-scheduler tries again by itself; look at its log if it does not")
        else:
            yield failed("scheduler", f"has said nothing of the pod; by the rules, {text}", "see doctor --cluster")
    elif verdict:
        for reason, count in Counter(why.values()).most_common(8):
            yield failed("rules", f"{count} of {len(why)} nodes: {reason}", remedy or WAIT)
        if not why:
            yield failed("rules", "the cluster has no node", "kubectl get nodes")


def _reasons(text: str) -> Iterator[str]:
    """The reasons of HAMi's in a text, for which there is a remedy."""
    summed = parse_summary(text)
    yield from (one for one in summed if plain(one) in PENDING)
    yield from (one for one in PENDING if one in text and one not in summed)


def _last(events: Sequence[Json] | Unavailable, reasons: Sequence[str]) -> str:
    """The message of the newest Event with one of the reasons."""
    listed = () if isinstance(events, Unavailable) else events
    messages = [text_in(one, "message") for one in listed if text_in(one, "reason") in reasons]
    return messages[-1] if messages else ""


def _binding(facts: PodFacts, pod: PodView) -> Iterator[Finding]:
    decided, phase = pod.annotations.get(ASSIGNED_NODE, ""), pod.annotations.get(BIND_PHASE, "")
    if not pod.node:
        if decided:
            yield warning("binding", f"decided for node {decided}, and not bound yet", "it is tried again by itself")
        return
    if decided and decided != pod.node:
        text = f"devices were decided on node {decided}, and the pod is on {pod.node}"
        yield failed("binding", text, "delete the pod; look for what else binds pods")
    elif not decided:
        mark = warning if facts.serves_others else failed
        yield mark("binding", f"is on node {pod.node} without a decision", REFUSED[RefusalReason.NOT_SCHEDULED])
    elif phase == PHASE_FAILED:
        yield failed("binding", f"node {pod.node} has not handed the devices out", "delete the pod; " + DOCTOR)
    elif phase != PHASE_SUCCESS:
        yield warning("binding", f"node {pod.node} has not handed all devices out yet ({phase or 'no phase'})", DOCTOR)
    else:
        yield ok("binding", f"node {pod.node} has handed the devices out")


def _refusal(facts: PodFacts, raw: Json) -> Iterator[Finding]:
    status = member(raw, "status")
    messages = [text_in(status, "message")] if text_in(status, "reason") else []
    waiting = [
        member(member(one, "state"), "waiting")
        for key in ("initContainerStatuses", "containerStatuses")
        for one in items(status, key)
    ]
    messages += [text_in(one, "message") for one in waiting if text_in(one, "reason") not in STARTING]
    messages += [_last(facts.events, ("UnexpectedAdmissionError", "FailedCreatePodContainer", "Failed"))]
    for message in dict.fromkeys(filter(None, messages)):
        reason = next((one for one in RefusalReason if one.value in message), None)
        remedy = REFUSED[reason] if reason else "see kubectl describe pod"
        yield failed("kubelet", f"{text_in(status, 'reason') or text_in(status, 'phase')}: {message}"[:1000], remedy)
    if isinstance(facts.events, Unavailable):
        yield warning("Events", f"were not read: {facts.events.text}", "give --kubeconfig of a user who may list them")


def _decision(pod: PodView, wanted: Wanted) -> Iterator[Finding]:
    if not pod.node or not pod.annotations.get(ASSIGNED_NODE):
        return
    for family, _containers in wanted:
        try:
            found = decided_shares(pod, question_of(family))
        except WireError as error:
            yield failed("decision", str(error), REFUSED[RefusalReason.BAD_ANNOTATION])
            continue
        for claim in found:
            yield from _granted(claim, family)


def _granted(claim: DecidedShare, family: Family) -> Iterator[Finding]:
    container = claim.container
    unlimited = [grant.uuid for grant in claim.grants if not grant.memory and not grant.cores]
    what = ", ".join(f"{one.memory} MiB and {one.cores} cores of {one.uuid}" for one in claim.grants)
    if container.privileged:
        text = f"container {container.name} is privileged, and sees every device of the node"
        yield failed("limits", text, "take privileged away: no limit holds it")
    if unlimited:
        yield warning("limits", f"container {container.name} has no limit on {', '.join(unlimited)}", "ask for memory")
    else:
        yield ok("limits", f"container {container.name} has {what}")
    switched = sorted(name for name in container.env if name in OFF)
    if switched:
        text = (
            f"container {container.name} sets {', '.join(switched)}, which switches its limits off or goes round them"
        )
        yield failed("limits", text, "take it out of the pod; refuse such pods by policy")
    if family.node.unlimited:
        yield warning("limits", family.node.unlimited, "serve whole devices, or trust the containers")


OFF = frozenset({"CUDA_DISABLE_CONTROL", "LD_PRELOAD", "LD_AUDIT"})
"""Variables of HAMi-core, and of the loader that brings it in."""


def _region(facts: PodFacts, pod: PodView) -> Iterator[Finding]:
    if isinstance(facts.usage, Unavailable):
        yield warning("usage", f"was not read: {facts.usage.text}", f"run it in the daemon's pod on node {pod.node}")
    for one in () if facts.usage is None or isinstance(facts.usage, Unavailable) else facts.usage:
        state, detail, name = text_in(one, "state"), text_in(one, "detail"), text_in(one, "container")
        limit, used = one.get("memoryLimit"), one.get("memoryUsed")
        if state == "ok":
            yield ok("usage", f"container {name} counts {used} of {limit} bytes ({one.get('processes')} processes)")
        elif state == "not measured":
            yield warning("usage", f"container {name} is not measured", "no public source says what it uses")
        elif state in ("absent", "uninitialised"):
            text = f"container {name}: {detail}"
            yield warning("usage", text, "no program has come under its limits yet: see the lines about processes")
        else:
            text = f"container {name}: {state}: {detail}"
            yield failed("usage", text, "what it counts cannot be believed: end the pod, and look at what it runs")


def _isolation(facts: PodFacts) -> Iterator[Finding]:
    if facts.probed == ():
        yield warning("isolation", "no container of it has a limit of memory that can be tried", "it is tried for CUDA")
    for one in facts.probed or ():
        yield from isolation(one)


def _processes(facts: PodFacts, pod: PodView) -> Iterator[Finding]:
    found = facts.processes
    if isinstance(found, Unavailable):
        yield warning("processes", f"were not looked at: {found.text}", found.remedy)
    if found is None or isinstance(found, Unavailable):
        return
    for one in found:
        if not one.limited:
            text = f"process {one.pid} ({one.name}) of container {one.container} runs without the limiter's library"
            remedy = "a static program, or a removed preload, goes round all limits"
            if one.musl:
                text, remedy = f"{text}: its C library is musl", "use an image with glibc: the limiter needs it"
            yield failed("processes", text, remedy)
    if found and all(one.limited for one in found):
        yield ok("processes", f"all {len(found)} have loaded the limiter's library")
    if not found:
        text = "none with the limiter's library mounted is seen from here"
        yield warning("processes", text, f"run it as root on node {pod.node}, where its processes are seen")
