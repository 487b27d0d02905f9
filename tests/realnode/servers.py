"""The servers of a node as processes in an enclosure: started, ended, killed and started again."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.runtimes.enclosure import ENVIRONMENT, Enclosure, children

END_S = 20
POLL_S = 0.02


def until(holds: Callable[[], object], what: str, within_s: float, *, every_s: float = POLL_S) -> float:
    """Wait until ``holds``; return after how many seconds it did. ``TimeoutError`` names what did not happen."""
    start = time.monotonic()
    while not holds():
        if time.monotonic() - start > within_s:
            raise TimeoutError(f"{what}: not within {within_s:g} s")
        time.sleep(every_s)
    return time.monotonic() - start


@dataclass(slots=True, kw_only=True)
class Server:
    """One server. Its output is added to the enclosure's file ``log``."""

    enclosure: Enclosure
    name: str
    command: Sequence[str]
    entered: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def log(self) -> str:
        return f"/var/log/{self.name}.log"

    @property
    def pid(self) -> int:
        """The server's own process id, as the machine sees it."""
        assert self.entered is not None, f"{self.name} does not run"
        (child,) = children(self.entered.pid)  # nsenter waits for it
        return child

    def start(self) -> None:
        with self.enclosure.path(self.log).open("ab") as log:
            self.entered = subprocess.Popen(
                self.enclosure.entering(self.command),
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait for that."""
        if self.entered is None:
            return
        for child in children(self.entered.pid):
            os.kill(child, how)
        try:
            self.entered.wait(END_S)
        except subprocess.TimeoutExpired:
            self.entered.kill()
            self.entered.wait(END_S)
        self.entered = None

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """It stands still; and nsenter with it, which passes on that it continues."""
        assert self.entered is not None, f"{self.name} does not run"
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            self.entered.send_signal(signal.SIGCONT)
            os.kill(self.pid, signal.SIGCONT)

    def runs(self) -> bool:
        return self.entered is not None and self.entered.poll() is None

    def tail(self) -> str:
        return self.enclosure.path(self.log).read_text(errors="replace")[-3000:]
