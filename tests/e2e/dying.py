"""The daemon with a fatal spot: ``python dying.py STEP FILE run …`` is killed by itself, by SIGKILL, when it is there.

After the reply, it is there once somebody has made ``FILE``: whoever asked has the reply then.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from hami_plugin import cli
from hami_plugin.allocation import settlement
from hami_plugin.allocation.allocator import Allocator
from hami_plugin.allocation.ledger import Journal, Ledger
from hami_plugin.allocation.preparation import Preparation
from hami_plugin.allocation.settlement import Settlement
from hami_plugin.cluster.client import ApiServer
from hami_plugin.daemon.app import Daemon
from hami_plugin.daemon.node import StateDirectory
from hami_plugin.daemon.serving import Serving
from hami_plugin.daemon.takeover import NodeClaim, Peer
from hami_plugin.host.files import StateLock
from hami_plugin.kubelet import endpoint
from hami_plugin.node_status.usage import UsageReader

POLL_S = 0.01


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner, name):
    """Die when a call of ``owner.name`` has done its work."""
    original = getattr(owner, name)

    def fatal(*arguments, **named):
        original(*arguments, **named)
        die()

    setattr(owner, name, fatal)


def after_awaited(owner, name):
    """As ``after``, for a coroutine."""
    original = getattr(owner, name)

    async def fatal(*arguments, **named):
        await original(*arguments, **named)
        die()

    setattr(owner, name, fatal)


async def replied():
    """Wait until the kubelet has the reply."""
    while not ANSWERED.exists():  # noqa: ASYNC110, ASYNC240  # it is another process, and the disk is a test's
        await asyncio.sleep(POLL_S)


def after_waiting(owner, name):
    """As ``after_awaited``, when the kubelet has the reply as well."""
    original = getattr(owner, name)

    async def fatal(*arguments, **named):
        await original(*arguments, **named)
        await replied()
        die()

    setattr(owner, name, fatal)


async def before_any_thought(_self, _ids):
    die()


async def before_the_limits(_self, _held, _grants):
    die()


async def before_the_record(_self, _pod):
    await replied()
    die()


def half_an_entry(self, entry, whole=None):
    line = json.dumps(entry)
    file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, line[: len(line) // 2].encode())
    die()


BEFORE_THE_REPLY = {
    "asked": lambda: setattr(Allocator, "allocate", before_any_thought),
    "directories made": lambda: after_awaited(Preparation, "answer"),
    "reserved": lambda: after(Ledger, "reserve"),
    "half an entry written": lambda: setattr(Journal, "append", half_an_entry),
    "written": lambda: after(Journal, "append"),
}
AFTER_THE_REPLY = {
    "answered": lambda: setattr(Settlement, "_record", before_the_record),
    "recorded at the pod": lambda: after_waiting(ApiServer, "patch_pod"),
    "lock released": lambda: after_waiting(settlement, "release_lock"),
}


def after_saying(word):
    """Die when this message has been sent to the other side of a takeover."""
    original = Peer.say

    async def fatal(self, **message):
        await original(self, **message)
        if word in message and not message.get("refused"):
            die()

    Peer.say = fatal


AS_SUCCESSOR = {
    "has asked": lambda: after_saying("problems"),
    "has the lock": lambda: after_awaited(NodeClaim, "take"),
    "has read the journal": lambda: after(Ledger, "load"),
    "is registered": lambda: after_awaited(endpoint, "register"),
    "is forgotten by the kubelet": lambda: after_awaited(Serving, "unregister"),
    "has relieved the incumbent": lambda: after_saying("serving"),
}
ASKED = {"is registered", "is forgotten by the kubelet"}
"""The steps at which the kubelet asks a successor that has not relieved the incumbent."""
AS_INCUMBENT = {
    "passes calls on": lambda: after(Serving, "leave"),
    "has ended its calls": lambda: after_awaited(Daemon, "_drained"),
    "writes no more": lambda: after_awaited(StateDirectory, "close"),
    "has released the lock": lambda: after(StateLock, "release"),
    "has said so": lambda: after_saying("refused"),
    "is relieved": lambda: after_awaited(Daemon, "end"),
}


def after_telling(owner, name):
    """Die when a pod was told of its new amounts, and not at earlier patches of its."""
    original = getattr(owner, name)

    async def fatal(self, pod, changes):
        answer = await original(self, pod, changes)
        if any(key.endswith("-allocated") for key in changes):
            die()
        return answer

    setattr(owner, name, fatal)


OF_A_RESIZE = {
    "intent written": lambda: setattr(UsageReader, "limit", before_the_limits),
    "limits written": lambda: after_awaited(UsageReader, "limit"),
    "pod told": lambda: after_telling(ApiServer, "patch_pod"),
}

if __name__ == "__main__":
    step = sys.argv.pop(1)
    ANSWERED = Path(sys.argv.pop(1))
    {**BEFORE_THE_REPLY, **AFTER_THE_REPLY, **AS_SUCCESSOR, **AS_INCUMBENT, **OF_A_RESIZE}[step]()
    cli.main()
