"""HAMi's own cases of taking the node lock. How it is read, written and released: tests/protocol."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hami_plugin.protocol.keys import NODE_LOCK
from hami_plugin.protocol.nodes import parse_lock
from hami_plugin.scheduler.extender.bind import LockedByAnother, LockHeld, TakeLock, claim
from tests.support.hami import Json, asks
from tests.support.pods import view

NOW = datetime(2026, 8, 21, 10, 11, 12, tzinfo=UTC)
EXCUSED = {
    "nodelock.GeneratePodNamespaceName": "joins a namespace and a name",
    "nodelock.IsNodeLockContention": "contention is a value here, `Busy`, and no error to be recognised",
    "nodelock.setupNodeLockTimeout": "reads an environment variable; the time-out is an argument here",
}


def lock(cluster: Json, node: str) -> str | None:
    """The lock's text; None where the node does not exist, and so nobody can be asked about its lock."""
    if node not in cluster["nodes"]:
        return None
    return cluster["nodes"][node].get("annotations", {}).get(NODE_LOCK, "").replace("{now}", NOW.isoformat())


@asks("node_lock", "nodelock.LockNode", "nodelock.SetNodeLock")
def test_a_node_is_taken_when_nobody_has_it(case: Json):
    question, expected = case["input"], case["expected"]
    text, after = (lock(cluster, question["node_name"]) for cluster in (question["cluster"], expected["cluster_after"]))
    if text is None:
        assert "not found" in expected["error"]
        return
    raced = "is locked: node lock contention" in (expected["error"] or "")
    if raced:  # another scheduler was faster: the API server says so, and the lock is read again
        text = after or ""
    pod = view(question["pod"])
    timeout = timedelta(minutes=2 if "within 2m" in (expected["error"] or "") else 5)

    answer = claim(text, pod, now=NOW, expires=timeout, gone=not raced and gone(text, question["cluster"]))

    match answer:
        case TakeLock():
            assert expected["error"] is None
            assert answer.text == NOW.isoformat().replace("+00:00", f"Z,{pod.namespace},{pod.name}")
            # One recorded answer was lost on its way, and with it what was written.
            assert after in ("", answer.text.replace("Z,", "+00:00,"))
        case LockHeld():
            assert expected["error"] is None
            assert after == text
        case LockedByAnother():
            assert expected["error"]
            assert after == text
            assert answer.why


def gone(text: str, cluster: Json) -> bool:
    """Whether the pod that the lock names is no longer there."""
    if "," not in text:
        return False
    owner = parse_lock(text)
    return f"{owner.namespace}/{owner.pod}" not in cluster["pods"]
