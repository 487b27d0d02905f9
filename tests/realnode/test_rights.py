"""What the accounts may do, by the API server's own word, beside the list of calls that the code makes."""

import re

import pytest

from tests.realnode import release
from tests.support.rights import DAEMON, SCHEDULER

pytestmark = pytest.mark.case("l", "each account has the rights that the code uses, and no other")
EVERYBODYS = re.compile(
    r"^self\S*reviews\.auth(orization|entication)\.k8s\.io |^clustertrustbundles\.certificates\.k8s\.io |^\s*\["
    r"|^Resources "
)
ROW = re.compile(r"^(?P<resource>\S+)\s+\[\]\s+\[(?P<names>.*?)\]\s+\[(?P<verbs>.*?)\]$")
KUBES_ROLES = ("system:kube-scheduler", "system:volume-scheduler")


def rights_of(node, account):
    """``kubectl auth can-i --list``, less what every account may: ask of itself, authorities and the version."""
    who = f"--as=system:serviceaccount:{release.NAMESPACE}:{account}"
    text = node.answer("auth", "can-i", "--list", f"--namespace={release.NAMESPACE}", who)
    rows = [ROW.match(line) for line in text.splitlines() if not EVERYBODYS.search(line)]
    assert all(rows), text
    return {(spelled(row["resource"]), row["names"], verb) for row in rows if row for verb in row["verbs"].split()}


def spelled(resource):
    """``claims/status.group`` and ``claims.group/status``, as old and new kubectls write it, in the first way."""
    whole = re.fullmatch(r"([^./]+)\.([^/]+)/(\S+)", resource)
    return f"{whole[1]}/{whole[3]}.{whole[2]}" if whole else resource


def rights_in(role):
    """The same of a role, as the API server has it."""
    return {
        (f"{resource}.{group}" if group else resource, name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def called(calls):
    return {(right.resource, "", right.verb) for right in calls}


def cluster_role(node, name):
    return rights_in(node.api.call("GET", f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}"))


def test_the_daemons_account_may_do_what_the_code_calls_and_nothing_else(daemon, node):
    assert rights_of(node, release.DAEMON) == called(DAEMON)


def test_the_schedulers_account_may_do_what_the_code_calls_and_what_kube_scheduler_beside_it_needs(scheduler, node):
    """Both are containers of one pod, so of one account; Kubernetes itself says what kube-scheduler needs."""
    name = release.SCHEDULER
    kubes = {right for role in KUBES_ROLES for right in cluster_role(node, role)}
    lease = {("leases.coordination.k8s.io", "", "create")}
    lease |= {("leases.coordination.k8s.io", name, verb) for verb in ("get", "update")}

    assert cluster_role(node, name) == called(SCHEDULER)
    assert rights_of(node, name) == called(SCHEDULER) | lease | kubes


def test_the_pods_run_under_the_accounts_of_the_chart(daemon, scheduler, node):
    pods = node.api.call("GET", f"/api/v1/namespaces/{release.NAMESPACE}/pods")["items"]

    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {release.DAEMON, release.SCHEDULER}
