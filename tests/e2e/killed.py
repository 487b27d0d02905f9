"""A node whose daemon is killed at a named point of a claim's life, and what happens beside that.

Points that leave the same behind are one group: with one thing beside, each is tried and seen to leave the same, and
with any other the last of each group stands for all.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import suppress
from functools import partial

import pytest

from hami_plugin.demo.node import GUARD_S
from hami_plugin.simulation.dra import PrepareError
from tests.e2e import dying_claims as dying
from tests.e2e.claiming import NAMESPACE
from tests.support.forked import fork_daemon
from tests.support.scale import FULL

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Killed:
    """A stage whose daemon dies at points that are named one after the other.

    ``made`` are the groups of points while a claim is made ready, ``released`` those after. ``asked`` is what pods'
    claims ask for.
    """

    made, released = dying.PREPARE, dying.UNPREPARE
    answered = False
    """Whether a release may have been answered when the daemon dies."""

    def __init__(self, stage, **asked):
        self.asked = asked
        self.stage, self.node, self.kubelet = stage, stage.node, stage.kubelet
        self.file = stage.node.directory / "point"
        self.boots = 0

    async def start(self):
        self.file.with_suffix(".boot").write_text(f"boot-{self.boots}")
        await self.stage.start(partial(fork_daemon, self.node, dying.live, self.file))

    async def dead(self):
        async with asyncio.timeout(GUARD_S):
            assert await self.node.daemon.wait() == -signal.SIGKILL
        self.node.daemon = None

    async def dies(self, name, spot):
        """The pod whose claim the daemon was asked about when it died at ``spot``."""
        await self.node.until(self.stage.whole, "the whole pool", GUARD_S)  # what is gone changes the slices
        pod = self.stage.place(name, **self.asked)
        call, answered = self.kubelet.prepare, False
        if not self.makes(spot):
            await self.kubelet.prepare(pod)
            call, answered = self.kubelet.unprepare, self.answered
        self.arm(spot)
        with suppress(PrepareError) if answered else pytest.raises(PrepareError, match="UNAVAILABLE"):
            await call(pod)
        await self.dead()
        return pod

    def arm(self, spot):
        """Have the daemon die there."""
        self.file.write_text(spot)

    def makes(self, spot):
        return any(spot in group for group in self.made)

    def wipe(self):
        for path in self.stage.directories[-1].iterdir():
            path.unlink()

    async def boot(self):
        """The directory of specs is empty, the boot id another, the kubelet new, and no container runs."""
        self.wipe()
        self.boots += 1
        await self.kubelet.restart()

    def answer(self, pod):
        devices = [one.SerializeToString(deterministic=True) for one in self.kubelet.devices(pod.claims["gpu"])]
        files = {path.name: path.read_bytes() for path in self.stage.directories[-1].iterdir()}
        return devices, files, self.stage.edits(pod)

    async def asked_again(self, pod):
        """What a new kubelet is answered."""
        await self.kubelet.restart()
        await self.node.until(lambda: self.kubelet.registered(self.stage.driver), "the kubelet's return", GUARD_S)
        await prepared(self.kubelet, pod)
        return self.answer(pod)

    def left(self, pod):
        """What the next life finds of the pod's claim: the last word of each journal, and the files."""
        uid = self.stage.api.claim(NAMESPACE, pod.claims["gpu"])["metadata"]["uid"]
        state = self.node.directory / "state"

        def plain(text):
            named = text.replace(uid, "CLAIM").replace(pod.uid, "POD").replace(pod.name, "NAME")
            # The version of a CDI spec is 0.5.0 where a name begins with a digit, else 0.3.0.
            return re.sub(r"\.[0-9]+\.tmp|0\.[35]\.0", "", _UUID.sub("UUID", named))

        journal = state / "claims"
        lines = journal.read_text().splitlines() if journal.exists() else []
        last = [plain(line) for line in lines[-1:] if uid in line or not line.endswith("}")]
        specs = [path for folder in (state, self.stage.directories[-1]) for path in folder.glob("*hami-claim_*")]
        folders = [path.name for path in self.node.directory.glob("hook/**/containers/*") if pod.uid in path.name]
        parts = [
            (part["state"], sorted(part["ids"]))
            for path in state.glob("partitions-*")
            for line in path.read_text().splitlines()
            if (part := json.loads(line)["partition"]).get("owner", {}).get("uid") == uid
        ]
        return last, sorted((plain(path.name), plain(path.read_text())) for path in specs), len(folders), parts[-1:]

    async def holds(self, pod):
        """All that must be true of a claim that is prepared."""
        raise NotImplementedError

    async def clean(self):
        """Nothing is left."""
        assert self.stage.leaks() == []


async def prepared(kubelet, pod):
    """As the kubelet does it: it asks again while a daemon that has just started does not know its devices yet."""
    async with asyncio.timeout(GUARD_S):
        while True:
            try:
                return await kubelet.prepare(pod)
            except PrepareError as error:
                if "is not known yet" not in str(error):
                    raise


async def asks_again(one, pod, spot):
    await one.start()
    if one.makes(spot):
        await prepared(one.kubelet, pod)
        await one.holds(pod)
    await one.kubelet.unprepare(pod)
    one.stage.end(pod)


async def kubelet_restarted(one, pod, spot):
    await one.kubelet.restart()
    await asks_again(one, pod, spot)


async def booted(one, pod, spot):
    await one.boot()
    await asks_again(one, pod, spot)


async def wiped(one, pod, spot):
    one.wipe()
    await asks_again(one, pod, spot)


async def pod_gone(one, pod, _spot):
    """By force: its claim is gone as well when the kubelet comes to release it."""
    one.stage.end(pod)
    await one.start()
    await one.kubelet.unprepare(pod)


async def forgotten(one, pod, _spot):
    """Nobody will ever release it."""
    one.stage.end(pod)
    one.kubelet._claims.clear()
    one.file.with_suffix(".lost").touch()
    await one.start()
    await one.node.until(lambda: not one.stage.entries(), "the end of what nobody has", GUARD_S)
    await one.node.until(lambda: not one.stage.claim_files(), "the end of its spec", GUARD_S)


COMPANY = {
    "the kubelet asks again": asks_again,
    "the host was booted anew": booted,
    "the pod was deleted by force": pod_gone,
    "the kubelet has lost its state": forgotten,
    "the kubelet was restarted": kubelet_restarted,
    "the directory of specs was emptied": wiped,
}


async def dies_everywhere(one, company, *, part):
    """With something beside: at each point, or where that is not the kubelet's next call, at one of each group.

    In a small run at one group of ``part``.
    """
    groups = [*one.made, *one.released]
    if not FULL:
        groups = groups[list(COMPANY).index(company) :: part]
    number = 0
    for group in groups:
        found = None
        for spot in group if FULL and COMPANY[company] is asks_again else group[-1:]:
            pod, number = await one.dies(f"killed-{number:03}", spot), number + 1
            try:
                if COMPANY[company] is asks_again:
                    left = one.left(pod)
                    assert found in (None, left), f"{group} do not leave the same behind: {found}, {left}"
                    found = left
                await COMPANY[company](one, pod, spot)
                async with asyncio.timeout(GUARD_S):
                    await one.clean()
            except Exception as error:
                raise AssertionError(f"killed when {spot}: {error!r}") from error
