"""The admission policies, evaluated: who may write which annotation, and on which node."""

import re

import cel
import pytest
import yaml

from hami_plugin.dra.conversion import CLAIMED
from tests.charts import facts, sets
from tests.charts.helm import rendered

DAEMON = "system:serviceaccount:hami-system:hami-plugin"
SCHEDULER = "system:serviceaccount:hami-system:hami-plugin-scheduler"
SOMEBODY = "system:serviceaccount:team:default"
NODE_CLAIM = "authentication.kubernetes.io/node-name"


@pytest.fixture(scope="module")
def policies():
    values = {"admissionPolicies": {"exemptUsers": ["system:serviceaccount:kube-system:hami-scheduler"]}}
    documents = rendered(values).kind("ValidatingAdmissionPolicy")
    return {d["metadata"]["name"].removeprefix("hami-plugin-"): d["spec"] for d in documents}


def admitted(policy, *, user, new, old=None, resource="pods", extra=None):
    """Whether the policy lets the request pass, as an API server would evaluate it; errors are raised."""
    claims = {"username": user} if extra is None else {"username": user, "extra": extra}
    request = {"userInfo": claims, "resource": {"group": "", "version": "v1", "resource": resource}}
    context = {"request": request, "object": new, "oldObject": old, "variables": {}}
    if not all(cel.evaluate(condition["expression"], context) for condition in policy["matchConditions"]):
        return True
    for variable in policy["variables"]:
        context["variables"][variable["name"]] = cel.evaluate(variable["expression"], context)
    for validation in policy["validations"]:
        message = re.sub(
            r"variables\.(\w+)\.join\(', '\)", r"string(variables.\1.size())", validation["messageExpression"]
        )
        assert isinstance(cel.evaluate(message, context), str)
    return all(cel.evaluate(validation["expression"], context) for validation in policy["validations"])


def thing(node=None, **annotations):
    spec = {"spec": {"nodeName": node}} if node else {"spec": {}}
    meta = {"name": "n1", "annotations": {key.replace("__", "/"): value for key, value in annotations.items()}}
    return {"metadata": meta, **spec}


BARE = {"metadata": {"name": "n1"}, "spec": {}}
ANNOTATIONS = yaml.load(facts.annotations(), yaml.CSafeLoader)


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in ANNOTATIONS.items() for key in keys])
def test_nobody_else_sets_changes_or_removes_an_annotation_of_ours(policies, kind, key):
    policy = policies[f"reserved-{kind}"]
    one, two = ({"metadata": {"name": "n1", "annotations": {key: value}}} for value in "12")

    for new, old in ((one, None), (one, BARE), (two, one), (BARE, one)):
        assert not admitted(policy, user=SOMEBODY, new=new, old=old, resource=kind)
        for user in (DAEMON, SCHEDULER, "system:serviceaccount:kube-system:hami-scheduler"):
            assert admitted(policy, user=user, new=new, old=old, resource=kind)


def test_what_a_pod_counts_for_is_the_webhooks_to_write_and_stays(policies):
    """A pod is created by its user, whatever a webhook has added."""
    one, two = ({"metadata": {"name": "p", "annotations": {CLAIMED: value}}} for value in "12")
    policy = policies["reserved-pods"]

    assert admitted(policy, user=SOMEBODY, new=one)
    assert admitted(policy, user=SOMEBODY, new=one, old=one)
    assert not admitted(policy, user=SOMEBODY, new=two, old=one)
    assert not admitted(policy, user=SOMEBODY, new=BARE, old=one)


@pytest.mark.parametrize("kind", ANNOTATIONS)
def test_everything_else_passes(policies, kind):
    policy = policies[f"reserved-{kind}"]
    ours = ANNOTATIONS[kind][0]
    before = {"metadata": {"name": "n1", "annotations": {ours: "1", "team/x": "1"}}}
    after = {"metadata": {"name": "n1", "annotations": {ours: "1", "team/x": "2"}}}

    assert admitted(policy, user=SOMEBODY, new=BARE)
    assert admitted(policy, user=SOMEBODY, new=BARE, old=BARE)
    assert admitted(policy, user=SOMEBODY, new=after, old=before)
    assert admitted(policy, user="system:node:n1", new={"metadata": {"name": "n1", "annotations": {}}}, old=BARE)


def test_the_policies_are_about_the_objects_and_their_status(policies):
    rules = {name: p["matchConstraints"]["resourceRules"][0] for name, p in policies.items()}

    assert rules["reserved-pods"]["resources"] == ["pods", "pods/status", "pods/binding"]
    assert rules["reserved-nodes"]["resources"] == ["nodes", "nodes/status"]
    assert all(set(rule["operations"]) <= {"CREATE", "UPDATE"} for rule in rules.values())


def test_nobody_else_brings_an_annotation_of_ours_with_a_binding(policies):
    """An API server copies the annotations of a Binding to the pod."""
    target = {"target": {"kind": "Node", "name": "n1"}}
    plain = {"metadata": {"name": "p"}, **target}
    forged = {"metadata": {"name": "p", "annotations": {ANNOTATIONS["pods"][0]: "1"}}, **target}
    policy = policies["reserved-pods"]

    assert "pods/binding" in policy["matchConstraints"]["resourceRules"][0]["resources"]
    assert admitted(policy, user="system:kube-scheduler", new=plain)
    assert not admitted(policy, user=SOMEBODY, new=forged)
    assert admitted(policy, user=SCHEDULER, new=forged)


@pytest.mark.parametrize("resource", ["nodes", "pods"])
def test_a_daemon_writes_on_its_own_node_only(policies, resource):
    policy = policies["own-node"]
    about = thing(node="n1" if resource == "pods" else None)

    def may(extra, new=about, user=DAEMON):
        return admitted(policy, user=user, new=new, old=about, resource=resource, extra=extra)

    assert may({NODE_CLAIM: ["n1"]})
    assert not may({NODE_CLAIM: ["n2"]})
    assert not may({})
    assert not may(None)
    assert may({NODE_CLAIM: ["n2"]}, user=SCHEDULER)


def test_a_daemon_does_not_write_to_a_pod_without_a_node(policies):
    assert not admitted(policies["own-node"], user=DAEMON, new=BARE, old=BARE, extra={NODE_CLAIM: ["n1"]})
    assert not admitted(policies["own-node"], user=DAEMON, new=BARE, old=BARE, extra=None)


def test_each_policy_is_bound_and_may_only_warn_if_wanted():
    release = rendered({"admissionPolicies": {"validationActions": ["Warn", "Audit"]}})
    bindings = release.kind("ValidatingAdmissionPolicyBinding")

    assert {b["spec"]["policyName"] for b in bindings} == {
        p["metadata"]["name"] for p in release.kind("ValidatingAdmissionPolicy")
    }
    assert all(b["spec"]["validationActions"] == ["Warn", "Audit"] for b in bindings)


@pytest.mark.parametrize("where", [sets.OLD, {"policies": False}], ids=["old", "without"])
def test_an_api_server_without_policies_gets_none(where):
    assert rendered({}, **where).kind("ValidatingAdmissionPolicy") == []
