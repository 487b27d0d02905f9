"""Takes up a changed configuration while the daemon runs: watched, validated, and swapped as a whole or refused.

Another daemon is built beside the one that serves, with the new configuration. Once it knows its devices, the present
one ends its calls and gives it the journal, the sockets and the kubelet's open streams; calls that come meanwhile wait.
So there is never a mixture of two configurations, and the kubelet notices nothing but what the change is about.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from hami_plugin.config.changes import ConfigurationChange, ConfigurationSource, ReloadRefusal, Reloads, problems_of
from hami_plugin.config.load import Configuration
from hami_plugin.daemon.takeover import Ask, Problems, refusal
from hami_plugin.errors import HamiError
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.process.concurrency import Backoff, poll_condition, wait_event
from hami_plugin.process.log import logger

log = logger(__name__)

QUIET_S = 0.1
"""How long files must stay as they are before they are read: an editor may write in several steps."""
LONGEST_S = 2.0
"""A file that never stays as it is, is read after this time."""
LOOK_S = 5.0
"""How often the files are compared although nothing was heard of them."""
DISCOVER_S = 60.0
"""How long the drivers may take to find the devices under a new configuration."""
RETRY = Backoff(first=5.0, cap=300.0)
"""When a configuration whose devices cannot be served is tried again."""

RESTART = (
    "nodeName",
    "kubeletDir",
    "podResourcesSocket",
    "cdiDirs",
    "stateDir",
    "hookPath",
    "httpHost",
    "httpPort",
    "logFormat",
)
"""Keys that the process reads once: its files, its sockets and its port."""
LIVE = ("logLevel", "statusPage")
"""Keys that take effect at once, in the daemon that runs."""
WITHOUT_EFFECT = ("scheduler",)
"""Keys that daemons ignore."""


def change(before: Configuration, after: Configuration) -> ConfigurationChange:
    """Which keys differ, by what it takes to have them in force."""
    old, new = before.effective(), after.effective()
    own = [key for key in new if key not in ("vendors", *WITHOUT_EFFECT) and new[key] != old.get(key)]
    vendors = list(_vendor_keys(before, after))
    return ConfigurationChange(
        live=tuple(sorted(key for key in own if key in LIVE)),
        swapped=tuple(
            sorted([*(k for k in own if k not in (*LIVE, *RESTART)), *(k for k, kept in vendors if not kept)])
        ),
        restart=tuple(sorted([*(k for k in own if k in RESTART), *(k for k, kept in vendors if kept)])),
    )


def _vendor_keys(before: Configuration, after: Configuration) -> Iterable[tuple[str, bool]]:
    """Vendors' keys that differ, and whether the process keeps what they had at its start."""
    for name, section in after.sections.items():
        new = section.model_dump(mode="json", by_alias=True)
        former = before.sections.get(name)
        old: Mapping[str, Any] = former.model_dump(mode="json", by_alias=True) if former else {}
        used = former is not None and former.enabled is not False and section.enabled is not False
        for key, value in new.items():
            if value != old.get(key):
                yield f"vendors.{name}.{key}", used and key in section.restart


class Incumbent(Protocol):
    """The daemon that serves now."""

    def driver_problems(self) -> Problems: ...
    async def give_way(self) -> str: ...


class Turn(Protocol):
    """How a daemon comes to have the node."""

    async def take(self, stop: asyncio.Event, problems: Callable[[], Problems | None]) -> bool:
        """Wait for it. False: it will not come. ``problems`` answers None until the daemon knows what it can serve."""


class Succession:
    """A daemon's turn after another one of the same process. ``refused`` is why it has none; ``taken`` is called when
    it has the node.
    """

    def __init__(self, incumbent: Incumbent, *, within: float = DISCOVER_S) -> None:
        self.refused = ""
        self.given = False
        self.taken: Callable[[], None] = lambda: None
        self._incumbent: Incumbent | None = incumbent
        self._within = within

    async def take(self, stop: asyncio.Event, problems: Callable[[], Problems | None]) -> bool:
        """As of ``Turn``, once."""
        incumbent, self._incumbent = self._incumbent, None
        assert incumbent
        if not await poll_condition(lambda: stop.is_set() or problems() is not None, within=self._within):
            self.refused = f"the devices were not found within {self._within:g} s"
        known = problems()
        if stop.is_set() or known is None:
            self.refused = self.refused or "the daemon is stopping"
            return False
        asked = Ask(name="the new configuration", problems=known)
        self.refused = refusal(asked, predecessor="", ours=incumbent.driver_problems())
        if not self.refused:
            self.refused = await incumbent.give_way()
        if not self.refused:
            self.given = True
            self.taken()
        return self.given


class Host(Protocol):
    """Who runs the daemons of this process."""

    @property
    def configuration(self) -> Configuration:
        """The one in force."""

    def busy(self) -> str:
        """Why it cannot change just now; empty when it can."""

    def claimed(self) -> Collection[str]:
        """Vendors whose devices are offered or held by ResourceClaims."""

    def isolated(self) -> Collection[str]:
        """Vendors whose drivers have processes of their own, which have the level of the log from their start."""

    def adopt(self, configuration: Configuration) -> None:
        """Have this one in force, which differs in nothing that a daemon has read."""

    async def replace(self, configuration: Configuration) -> str:
        """Serve with this one from now on. Answers why not."""

    def tell(self, reason: str, message: str, *, warning: bool) -> None:
        """An Event about the node."""


class Reloader:
    """Compares the files with what is in force, at each change and now and then, and swaps or refuses."""

    def __init__(self, source: ConfigurationSource, host: Host, reloads: Reloads) -> None:
        self._source = source
        self._host = host
        self._reloads = reloads
        self._woken = asyncio.Event()
        self._again = False
        self._due = math.inf
        self._judged = ""
        self._busy = Backoff(first=0.5, factor=1.0, cap=0.5).delays()
        self._delays = RETRY.delays()
        self._watches = [DirectoryWatch(one, contents=True) for one in {path.parent for path in source.paths}]

    def again(self) -> None:
        """Judge the files anew, even if they are the same."""
        self._again = True
        self._woken.set()

    async def run(self) -> None:
        """For ever."""
        pause = LOOK_S
        with ExitStack() as stack:
            for watch in self._watches:
                stack.enter_context(watch.subscribed(self._woken.set))
            while True:
                await wait_event(self._woken, within=pause)
                self._woken.clear()
                for watch in self._watches:
                    watch.look()
                pause = await self._look()

    async def _look(self) -> float:
        """Judge the files if they have changed; answers when to look next."""
        digest = await asyncio.to_thread(self._source.digest)
        now = asyncio.get_running_loop().time()
        if digest == self._judged and not self._again and now < self._due:
            return min(LOOK_S, self._due - now)
        forced, self._again, self._due = self._again, False, math.inf
        if digest != self._judged:
            digest = await self._quiet(digest)
        try:
            configuration = await asyncio.to_thread(self._source.read)
            if await asyncio.to_thread(self._source.digest) != digest:
                self._woken.set()  # it changed while it was read; another round will tell
                self._again = forced
                return LOOK_S
            self._judged = digest
            refused, why = await self._judge(configuration)
        except HamiError as error:
            self._judged = digest
            refused, why = ReloadRefusal.INVALID, problems_of(error)
        if refused is None:
            self._accepted()
            return LOOK_S
        self._refuse(refused, why)
        if refused in (
            ReloadRefusal.BUSY,
            ReloadRefusal.DEVICES,
        ):  # what is in the way may go away without a change of the files
            self._due = asyncio.get_running_loop().time() + next(
                self._busy if refused is ReloadRefusal.BUSY else self._delays
            )
        return min(LOOK_S, max(0.0, self._due - asyncio.get_running_loop().time()))

    async def _quiet(self, digest: str) -> str:
        """Wait until the files stay as they are."""
        rounds = int(LONGEST_S / QUIET_S)
        for _ in range(rounds):
            await asyncio.sleep(QUIET_S)
            now = await asyncio.to_thread(self._source.digest)
            if now == digest:
                break
            digest = now
        return digest

    async def _judge(self, wanted: Configuration) -> tuple[ReloadRefusal | None, str]:
        """Have it in force, or say why not."""
        found = change(self._host.configuration, wanted)
        if found.restart:
            keys = ", ".join(found.restart)
            return ReloadRefusal.RESTART, f"needs a restart of the daemon: {keys}; nothing of this change is in force"
        if found.swapped or ("logLevel" in found.live and self._host.isolated()):
            if by_claims := self._host.claimed():
                keys = ", ".join((*found.swapped, *found.live))
                return ReloadRefusal.RESTART, (
                    f"needs a restart of the daemon while devices of {', '.join(by_claims)} are offered or held by "
                    f"ResourceClaims: {keys}; nothing of this change is in force"
                )
            if why := self._host.busy():
                return ReloadRefusal.BUSY, why
            if why := await self._host.replace(wanted):
                return ReloadRefusal.DEVICES, why
        elif found.live:
            self._host.adopt(wanted)
        else:
            self._host.adopt(wanted)
            return None, ""
        if "logLevel" in found.live:
            self._source.level(wanted.settings.log_level)
        self._reloads.generation += 1
        keys = ", ".join((*found.live, *found.swapped))
        log.info("configuration taken up", generation=self._reloads.generation, changed=keys)
        for warning in wanted.warnings:
            log.warning("configuration", warning=warning)
        self._host.tell(
            "ConfigurationChanged",
            f"configuration {self._reloads.generation} is in force, without a restart: {keys}",
            warning=False,
        )
        return None, ""

    def _accepted(self) -> None:
        self._delays = RETRY.delays()
        self._reloads.reason = self._reloads.problem = ""

    def _refuse(self, refused: ReloadRefusal, why: str) -> None:
        news = (refused, why) != (self._reloads.reason, self._reloads.problem)
        self._reloads.reason, self._reloads.problem = refused.value, why
        if refused is ReloadRefusal.BUSY:
            return  # it is tried again soon
        self._reloads.refusals[refused] += 1
        if not news:
            return
        log.warning("configuration refused", reason=refused.value, why=why, generation=self._reloads.generation)
        self._host.tell(
            "ConfigurationNeedsRestart" if refused is ReloadRefusal.RESTART else "ConfigurationRefused",
            f"the changed configuration is not in force, number {self._reloads.generation} still is: {why}"[:1000],
            warning=True,
        )
