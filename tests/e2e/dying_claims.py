"""The daemon with fatal points for claims: it reads in a file where it is to die.

It kills itself by SIGKILL when it comes to that point. ``FILE.boot`` has the host's boot id, and where ``FILE.lost`` is
there, claims that nobody has are looked for at once.
"""

import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from cdi import store
from hami_plugin import cli
from hami_plugin.allocation.ledger import Journal
from hami_plugin.cluster.client import ApiServer
from hami_plugin.daemon import node
from hami_plugin.dra import prepared, preparing
from hami_plugin.dra.prepared import ClaimFiles, PreparedClaims
from hami_plugin.dra.preparing import ClaimPreparer, PreparingTiming
from hami_plugin.partitions import manager
from hami_plugin.vendor_boundary.guard import Guard
from tests.support.forked import become, stand_in
from vendors.nvidia.partitions import MigSession

PREPARE = (
    (
        "the call has come",
        "the claim is to be read",
        "the claim was read",
        "the devices are reserved",
        "the vendor is to be asked",
        "the vendor has answered",
        "the intent is to be noted",
    ),
    ("half the intent is noted",),
    ("the intent is noted", "leftovers are to be removed", "leftovers were removed", "a directory is to be made"),
    ("a directory was made", "the spec is to be opened"),
    ("the spec was opened",),
    ("half the spec is written",),
    ("the spec is to be flushed", "the spec was flushed", "the spec is to be renamed"),
    ("the spec was renamed", "the end is to be noted"),
    ("half the end is noted",),
    ("the end is noted",),
)
"""Points by what they leave behind."""
UNPREPARE = (
    ("the release has come", "the spec is to be removed"),
    ("the spec was removed", "the drop is to be noted"),
    ("half the drop is noted",),
    ("the drop is noted",),
)
PUBLISH = (
    "a slice is to be created",
    "a slice was created",
    "a slice is to be updated",
    "a slice was updated",
    "a slice is to be deleted",
    "a slice was deleted",
)


def noted(*words):
    """The points of an entry of a partition: what is there before it is written is what was there after the former."""
    return [(f"a partition's {one} is to be noted", f"a partition's {one} is noted") for one in words]


INTENT, READY, ASSIGNED = noted("intent-create", "ready", "assigned")
STEP, RELEASE, DESTROY, GONE = noted("step", "release", "intent-destroy", "destroyed")
MADE = (
    (INTENT[0],),
    (INTENT[1], "a GPU instance is to be made"),
    ("a GPU instance was made", STEP[0]),
    (STEP[1], "a compute instance is to be made"),
    ("a compute instance was made",),
    (READY[0],),
    (READY[1], ASSIGNED[0]),
    (ASSIGNED[1], "the vendor is to be asked"),
    ("half the intent is noted",),
    ("the intent is noted",),
    ("the spec was renamed", "the end is to be noted"),
    ("the end is noted",),
)
"""While a claim with a partition is made ready."""
DESTROYED = (
    ("the spec was removed", "the drop is to be noted"),
    ("the drop is noted", RELEASE[0]),
    (RELEASE[1], DESTROY[0]),
    (DESTROY[1], "a compute instance is to be destroyed"),
    ("a compute instance was destroyed",),
    ("a GPU instance is to be destroyed",),
    ("a GPU instance was destroyed",),
    (GONE[0],),
    (GONE[1],),
)
"""While it is released, and after."""


def point(name):
    """Die here, if it is the point."""
    if FILE.exists() and FILE.read_text() == name:
        FILE.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def around(owner, name, before, after, *, claims_only=False):
    """Two points: before and after a call. ``claims_only``: of paths that a claim's spec has."""
    original = getattr(owner, name)

    def fatal(*arguments, **named):
        if claims_only and not any(str(prepared.PREFIX) in str(one) for one in arguments):
            return original(*arguments, **named)
        point(before)
        answer = original(*arguments, **named)
        point(after)
        return answer

    setattr(owner, name, fatal)


def around_awaited(owner, name, before, after, when=lambda *_: True):
    """As ``around``, for a coroutine."""
    original = getattr(owner, name)

    async def fatal(*arguments, **named):
        if not when(*arguments):
            return await original(*arguments, **named)
        point(before)
        answer = await original(*arguments, **named)
        point(after)
        return answer

    setattr(owner, name, fatal)


def half_written(file, data):
    if point_is("half the spec is written"):
        os.write(file, data[: len(data) // 2])
        point("half the spec is written")
    return os.write(file, data)


def point_is(name):
    return FILE.exists() and FILE.read_text() == name


def claims_journal():
    """The points around each kind of entry."""
    original = Journal.append

    def fatal(self, entry, *arguments, **named):
        if self._path.name != "claims":
            return original(self, entry, *arguments, **named)
        what = "drop" if entry["op"] == "drop" else "end" if entry["done"] else "intent"
        point(f"the {what} is to be noted")
        if point_is(f"half the {what} is noted"):
            line = store_line(entry)
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(file, line[: len(line) // 2])
            point(f"half the {what} is noted")
        answer = original(self, entry, *arguments, **named)
        point(f"the {what} is noted")
        return answer

    Journal.append = fatal


def partitions_journal():
    """As ``claims_journal``, around each kind of entry of partitions."""
    original = Journal.append

    def fatal(self, entry, *arguments, **named):
        if not self._path.name.startswith("partitions-"):
            return original(self, entry, *arguments, **named)
        what = f"a partition's {entry['op']}"
        point(f"{what} is to be noted")
        answer = original(self, entry, *arguments, **named)
        point(f"{what} is noted")
        return answer

    Journal.append = fatal


def store_line(entry):
    import json  # noqa: PLC0415  # of one point

    return json.dumps(entry).encode()


def install():
    around_awaited(ClaimPreparer, "prepare", "the call has come", "")
    around_awaited(ApiServer, "get_claim", "the claim is to be read", "the claim was read")
    around(PreparedClaims, "reserve", "", "the devices are reserved")
    around_awaited(
        Guard, "ask", "the vendor is to be asked", "the vendor has answered", lambda _self, step, *_: step == "inject"
    )
    claims_journal()
    partitions_journal()
    for kind, word in (("gpu", "GPU"), ("compute", "compute")):
        for verb, done in (("create", "made"), ("destroy", "destroyed")):
            name = f"{verb}_{kind}_instance"
            around(MigSession, name, f"a {word} instance is to be {done}", f"a {word} instance was {done}")
    around(ClaimPreparer, "_clean", "leftovers are to be removed", "leftovers were removed")
    around(prepared, "make_shared_directory", "a directory is to be made", "a directory was made")
    calls = {name: getattr(store.Calls(), name) for name in ("open", "fsync", "rename", "unlink")}
    spec = type("Calls", (), calls)
    for name, before, after in (
        ("open", "the spec is to be opened", "the spec was opened"),
        ("rename", "the spec is to be renamed", "the spec was renamed"),
    ):
        around(spec, name, before, after, claims_only=True)
    around(spec, "fsync", "the spec is to be flushed", "the spec was flushed")
    around_awaited(ClaimPreparer, "unprepare", "the release has come", "")
    around(ClaimFiles, "remove", "the spec is to be removed", "the spec was removed")
    own = replace(store.Calls(), open=spec.open, fsync=spec.fsync, rename=spec.rename, write=half_written)
    stand_in(prepared, "Store", partial(store.Store, calls=own))
    for verb, done in (("create", "created"), ("update", "updated"), ("delete", "deleted")):
        around_awaited(ApiServer, f"{verb}_slice", f"a slice is to be {done}", f"a slice was {done}")
    boot = FILE.with_suffix(".boot").read_text()
    stand_in(node, "_boot_id", lambda _proc: boot)
    # What takes longer in production, for pods that may come and calls that never do.
    sweep = 0.2 if FILE.with_suffix(".lost").exists() else 600.0
    stand_in(manager, "Timing", partial(manager.Timing, grace=0.2))
    stand_in(preparing, "PreparingTiming", partial(PreparingTiming, release=2.0, sweep=sweep, check=0.2))


def live(file, arguments, log):
    """The daemon, in a process of its own."""
    global FILE
    become(log)
    FILE, sys.argv = Path(file), ["hami-plugin", *arguments]
    install()
    cli.main()
