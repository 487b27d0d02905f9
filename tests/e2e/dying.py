"""The daemon with a fatal spot: ``python dying.py STEP run …`` is killed by itself, by SIGKILL, when it comes there."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from hami_plugin import cli
from hami_plugin.cluster.client import ApiServer
from hami_plugin.host.files import Journal
from hami_plugin.node import settlement
from hami_plugin.node.allocation import Allocator
from hami_plugin.node.ledger import Ledger
from hami_plugin.node.preparation import Preparation
from hami_plugin.node.settlement import Settlement

# Time for the reply to leave: it goes out on the same event loop, a few turns later.
REPLY_S = 0.1


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner, name):
    """Die when a call of ``owner.name`` has done its work."""
    original = getattr(owner, name)

    def fatal(*arguments, **named):
        original(*arguments, **named)
        die()

    setattr(owner, name, fatal)


def after_waiting(owner, name):
    """As ``after``, for a coroutine, when the reply to the kubelet has left as well."""
    original = getattr(owner, name)

    async def fatal(*arguments, **named):
        await original(*arguments, **named)
        await asyncio.sleep(REPLY_S)
        die()

    setattr(owner, name, fatal)


async def before_any_thought(_self, _ids):
    die()


async def before_the_record(_self, _pod):
    await asyncio.sleep(REPLY_S)
    die()


def half_an_entry(self, entry):
    line = json.dumps(entry)
    file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, line[: len(line) // 2].encode())
    die()


BEFORE_THE_REPLY = {
    "asked": lambda: setattr(Allocator, "allocate", before_any_thought),
    "directories made": lambda: after(Preparation, "answer"),
    "reserved": lambda: after(Ledger, "reserve"),
    "half an entry written": lambda: setattr(Journal, "append", half_an_entry),
    "written": lambda: after(Ledger, "write"),
}
AFTER_THE_REPLY = {
    "answered": lambda: setattr(Settlement, "_record", before_the_record),
    "recorded at the pod": lambda: after_waiting(ApiServer, "patch_pod"),
    "lock released": lambda: after_waiting(settlement, "release_lock"),
}

if __name__ == "__main__":
    {**BEFORE_THE_REPLY, **AFTER_THE_REPLY}[sys.argv.pop(1)]()
    cli.main()
