"""What the accounts may do, by the API server's own word, beside the list of calls that the code makes."""

import re

import pytest

from hami_plugin.cluster.rights import DAEMON, SCHEDULER

pytestmark = pytest.mark.case("l", "each account has the rights that the code uses, and no other")
EVERYBODYS = re.compile(r"self\S*reviews\.authorization\.k8s\.io|^\s*\[|^Resources ")
ROW = re.compile(r"^(?P<resource>\S+)\s+\[\]\s+\[(?P<names>.*?)\]\s+\[(?P<verbs>.*?)\]$")


def rights_of(node, account):
    """``kubectl auth can-i --list``, less what every account may: ask about itself, and for the server's version."""
    text = node.answer("auth", "can-i", "--list", f"--as=system:serviceaccount:hami-system:{account}")
    rows = [ROW.match(line) for line in text.splitlines() if not EVERYBODYS.search(line)]
    assert all(rows), text
    assert [row["names"] for row in rows] == [""] * len(rows)
    return {(row["resource"], verb) for row in rows for verb in row["verbs"].split()}


@pytest.mark.parametrize(("account", "calls"), [("hami-plugin", DAEMON), ("hami-scheduler", SCHEDULER)])
def test_an_account_may_do_what_the_code_calls_and_nothing_else(account, calls, daemon, scheduler, node):
    assert rights_of(node, account) == {(right.resource, right.verb) for right in calls}


def test_the_daemon_runs_under_the_manifests_account(daemon):
    assert daemon.pod()["spec"]["serviceAccountName"] == "hami-plugin"
