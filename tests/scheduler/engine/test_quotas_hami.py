"""HAMi's own cases of a namespace's quota."""

from __future__ import annotations

from typing import Any

from hami_plugin.scheduler.engine.devices import Quota
from hami_plugin.scheduler.engine.node_info import PodIndex, PodInfo
from hami_plugin.scheduler.engine.quotas import excess, limits, managed, used
from tests.support.hami import Json, asks
from tests.support.pods import families, held, view


def quota(resources: Json) -> Quota:
    """A quota as HAMi keeps it: only a limit that was set is one."""
    return Quota(
        limits={name: one.get("limit", 0) for name, one in resources.items() if one.get("limit_set")},
        used={name: one.get("used", 0) for name, one in resources.items()},
    )


def names(case: Json) -> Any:
    return families(case["context"]["resource_names"])


@asks("quota", "QuotaManager.FitQuota")
def test_a_request_fits_when_memory_and_cores_do(case: Json):
    question = case["input"]
    family = {one.resources.device_type: one for one in names(case)}.get(question["deviceName"])
    there = quota(question["backend"]["quotas"].get(question["ns"], {}))
    memory, cores = (family.resources.memory, family.resources.cores) if family else ("", "")

    enough = there.allows(memory, question["memreq"], question["memoryFactor"])
    enough = enough and there.allows(cores, question["coresreq"])

    assert enough == case["expected"]["result"]


@asks("quota", "IsManagedQuota")
def test_memory_and_cores_of_a_family_can_have_a_quota(case: Json):
    assert (case["input"]["quotaName"] in managed(names(case))) == case["expected"]["result"]


def known(case: Json, namespace: str) -> list[Json]:
    """What the namespace's quota said before, as a ResourceQuota says it."""
    there = case["input"]["backend"]["quotas"].get(namespace, {})
    return [{f"limits.{name}": str(limit) for name, limit in quota(there).limits.items()}]


def expected(case: Json, namespace: str) -> Json:
    after = case["expected"].get("after", case["input"])
    return quota(after["backend"]["quotas"].get(namespace, {})).limits


@asks("quota", "QuotaManager.AddQuota")
def test_a_quota_sets_the_limits_that_it_names(case: Json):
    added = case["input"]["quota"]
    namespace = added["namespace"]

    found = limits([*known(case, namespace), added["spec"]["hard"]], names(case))

    assert found == expected(case, namespace)


@asks("quota", "QuotaManager.DelQuota")
def test_a_quota_that_is_gone_limits_nothing(case: Json):
    gone = case["input"]["quota"]
    namespace = gone["namespace"]
    # What HAMi keeps is the sum of all quotas; here those that are left are read again.
    left = [
        {key: text for key, text in hard.items() if key not in gone["spec"]["hard"]} for hard in known(case, namespace)
    ]

    assert limits([gone["spec"]["hard"]], names(case)) == {
        name: limit
        for name, limit in quota(case["input"]["backend"]["quotas"][namespace]).limits.items()
        if f"limits.{name}" in gone["spec"]["hard"]
    }
    assert limits(left, names(case)) == expected(case, namespace)


@asks("quota", "QuotaManager.UpdateQuota")
def test_a_changed_quota_says_what_holds(case: Json):
    namespace = case["input"]["newQuota"]["namespace"]
    old, new = (limits([case["input"][key]["spec"]["hard"]], names(case)) for key in ("oldQuota", "newQuota"))

    assert old == quota(case["input"]["backend"]["quotas"][namespace]).limits
    assert new == expected(case, namespace)


def usage(case: Json, ledger: PodIndex, namespace: str) -> Json:
    found = used(names(case), [one.held for one in ledger.of(namespace)])
    return {name: amount for name, amount in found.items() if amount}


def theirs(case: Json, namespace: str) -> Json:
    after = case["expected"].get("after", case["input"])["backend"]["quotas"].get(namespace, {})
    return {name: one["used"] for name, one in after.items() if one.get("used")}


@asks("quota", "QuotaManager.AddUsage")
def test_a_pod_counts_in_its_namespace(case: Json):
    ledger, question = PodIndex(), case["input"]
    pod = view(question["pod"])

    ledger.put(PodInfo(pod=pod, node="n1", held=held(pod, question["pod_devices"])))

    assert usage(case, ledger, pod.namespace) == theirs(case, pod.namespace)


@asks("quota", "QuotaManager.RmUsage")
def test_a_pod_that_is_gone_counts_no_more_and_never_less_than_nothing(case: Json):
    question = case["input"]
    pod = view(question["pod"])
    one = PodInfo(pod=pod, node="n1", held=held(pod, question["pod_devices"]))
    there = question["backend"]["quotas"][pod.namespace]
    ledger = PodIndex([one] if any(item.get("used") for item in there.values()) else [])

    ledger.drop(pod.uid)

    assert usage(case, ledger, pod.namespace) == theirs(case, pod.namespace)


@asks("webhook", "fitResourceQuota")
def test_a_pod_beyond_its_namespaces_quota_is_told_which(case: Json):
    pod, context = view(case["input"]["pod"]), case["context"]
    there = quota(context["quotas"].get(pod.namespace, {}))

    problem = excess(pod, families(context["resource_names"]), there)

    assert (not problem) == case["expected"]["result"]
    if problem:
        name, _, numbers = problem.removeprefix("limits.").partition(": ")
        assert name in there.limits
        assert f"and {there.used.get(name, 0)} of " in numbers
