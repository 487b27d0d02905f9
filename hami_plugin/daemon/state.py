"""What a daemon writes down for its next life: what it handed out, what claims have, and its devices' health.

The files are in the state directory, whoever takes them away meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hami_plugin.allocation.ledger import Journal, JournalWriter, Ledger
from hami_plugin.dra.prepared import PreparedClaims
from hami_plugin.host.files import remove_unfinished
from hami_plugin.inventory.health_file import HealthMemory
from hami_plugin.process.concurrency import WorkThread
from hami_plugin.process.log import logger

log = logger(__name__)

CHECK_S = 5.0
"""How often it is looked whether the files are as they were left."""
CALL_S = 5.0
"""How long the disk may take over one call."""
FLUSH_S = 2.0
"""How long the end waits for the disk to take the last entries."""

T = TypeVar("T")


class StateDirectory:
    """The files of one daemon. ``renew`` answers whether the directory is still claimed by this process.

    They are only read until ``load``, which is called once the node is this process's.
    """

    def __init__(self, folder: Path, boot: str, renew: Callable[[], bool], *, every: float = CHECK_S) -> None:
        self._folder = folder
        self._renew = renew
        self._every = every
        self._thread = WorkThread("state directory")
        self._unclaimed = ""
        self.journal = JournalWriter(Journal(folder / "journal"))
        self.ledger = Ledger(self.journal)
        self._claims_journal = JournalWriter(Journal(folder / "claims"))
        self.claims = PreparedClaims(self._claims_journal)
        self.memory = HealthMemory(folder / "health.json", boot, reading_only=True)

    @property
    def problem(self) -> str:
        """Why something cannot be written; empty when all can."""
        return self._unclaimed or self.ledger.problem or self.claims.problem or self.memory.problem

    def load(self) -> tuple[int, int]:
        """Read what former lives have left: how many shares, and how many claims."""
        remove_unfinished(self._folder)
        self.memory.own()
        return self.ledger.load(), self.claims.load()

    async def call(self, work: Callable[[], T]) -> T:
        """Do some work with the directory, on its thread."""
        return await self._thread.call(work, CALL_S)

    async def written(self) -> None:
        """Wait until the disk has what was handed out. OSError when it cannot be written."""
        await self.ledger.written()
        await self.claims.written()

    async def run(self) -> None:
        """Keep the files where the next start reads them, until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            before, renewals = self.ledger.problem, self.journal.renewals
            self.ledger.check()
            self.claims.check()
            self.memory.check()
            unclaimed = await self._why_unclaimed()
            if unclaimed != self._unclaimed or before != self.ledger.problem:
                log.warning("state", problem=unclaimed or self.ledger.problem or "none any more")
            self._unclaimed = unclaimed
            if self.journal.renewals != renewals:
                log.warning("journal was gone or changed, and is written anew", shares=len(self.ledger.held))

    async def _why_unclaimed(self) -> str:
        try:
            mine = await self.call(self._renew)
        except OSError as error:
            return f"the state directory {self._folder} cannot be used: {error}"
        return "" if mine else "the state directory was replaced, and another daemon has claimed it"

    async def close(self) -> None:
        """Give the disk a moment to take the last entries."""
        with suppress(OSError):
            self._thread.start(lambda: self.journal.close(FLUSH_S))
            self._thread.start(lambda: self._claims_journal.close(FLUSH_S))
            await self._thread.call(lambda: self.memory.close(FLUSH_S), FLUSH_S, last=True)
