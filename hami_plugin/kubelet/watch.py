"""Wakes whoever looks at the kubelet's plugin directory. It only wakes: what happened is for the looker to see.

Events may be lost, late or refused by the system, so nothing relies on them; those who wait also look once a second.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from hami_plugin.kubelet.listener import FileIdentity
from hami_plugin.process.log import logger

log = logger(__name__)

STOP_TIMEOUT_S = 1.0
"""How long the event loop waits for watchdog's threads to end. They are daemons, and may end later, or never."""

CHECKPOINT = "kubelet_internal_checkpoint"
"""The kubelet replaces it, by way of a file whose name contains this one, after each Allocate. No socket's way."""

_EVENTS: list[type[FileSystemEvent]] = [FileCreatedEvent, FileDeletedEvent, FileMovedEvent, DirDeletedEvent]
_CONTENTS: list[type[FileSystemEvent]] = [*_EVENTS, FileClosedEvent, DirCreatedEvent, DirMovedEvent]
"""With what is written into files, and with links to directories, by which a ConfigMap is swapped."""


class DirectoryWatch:
    """One inotify watch for everybody who waits for changes in ``directory``. Use it on the event loop only.

    It is armed while it has subscribers. ``look`` arms it again after the directory was replaced, so call it from the
    same tick that looks at files. The cost is three threads, hence one watch for all endpoints of a directory.
    ``contents``: also when a file has been written.
    """

    def __init__(
        self, directory: Path, *, observer: Callable[[], BaseObserver] = Observer, contents: bool = False
    ) -> None:
        self._directory = directory
        self._events = _CONTENTS if contents else _EVENTS
        self._new_observer = observer
        self._subscribers: list[Callable[[], None]] = []
        self._armed: tuple[BaseObserver, FileIdentity, _Waker] | None = None
        self._warned = False

    @property
    def armed(self) -> bool:
        return self._armed is not None

    @contextmanager
    def subscribed(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake`` on the event loop after each change, while the context is open."""
        self._subscribers.append(wake)
        self.look()
        try:
            yield
        finally:
            self._subscribers.remove(wake)
            if not self._subscribers:
                self._disarm()

    def look(self) -> None:
        """Make sure that the watch is on the directory which is there now."""
        present = FileIdentity.of_directory(self._directory)
        if self._armed and (self._armed[1] != present or self._armed[2].gone):
            self._disarm()
        if present and not self._armed:
            self._arm(present)

    def _arm(self, identity: FileIdentity) -> None:
        try:
            waker = _Waker(asyncio.get_running_loop(), self._wake, str(self._directory))
            observer = self._new_observer()
            try:
                observer.schedule(waker, str(self._directory), event_filter=self._events)
                observer.start()
            except OSError:
                _end(observer)
                raise
        except OSError as error:
            if not self._warned:
                log.warning(
                    "file events unavailable, looking once a second instead",
                    directory=str(self._directory),
                    why=str(error),
                    hint="raise fs.inotify.max_user_instances or max_user_watches",
                )
            self._warned = True
            return
        self._armed, self._warned = (observer, identity, waker), False

    def _disarm(self) -> None:
        if self._armed:
            observer, _, waker = self._armed
            self._armed = None
            waker.gone = True
            if not _end(observer):
                log.warning("file events left running: their threads do not end", directory=str(self._directory))

    def _wake(self) -> None:
        for wake in tuple(self._subscribers):
            wake()


def _end(observer: BaseObserver) -> bool:
    """Stop and wait, on a thread of its own: ``stop`` itself waits for watchdog's emitters, without a deadline."""

    def end() -> None:
        observer.stop()
        if observer.ident is not None:
            observer.join()

    ending = threading.Thread(target=end, name="end of file events", daemon=True)
    ending.start()
    ending.join(STOP_TIMEOUT_S)
    return not ending.is_alive()


class _Waker(FileSystemEventHandler):
    """Runs on watchdog's thread, and does nothing there but call over to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None], directory: str) -> None:
        self._loop = loop
        self._wake = wake
        self._directory = directory
        self.gone = False

    def on_any_event(self, event: FileSystemEvent) -> None:
        if isinstance(event, DirDeletedEvent) and event.src_path == self._directory:
            self.gone = True
        elif CHECKPOINT in str(event.src_path).rpartition("/")[2]:
            return
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)
