"""A driver that plays a script: what each look shows, and calls that do not come back."""

import threading
from collections import deque

from hami_plugin.model.device import Discovery, Links, Sighting
from hami_plugin.sdk import HealthEvent

from .builders import device


class ScriptedDriver:
    """Shows ``numbers`` with ``faults``. ``trouble`` is raised by every call; ``hang`` holds back one device's look."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.faults: dict = {}
        self.trouble: Exception | None = None
        self.delay = 0.0
        self.calls: deque[str] = deque()
        self.threads: set[int] = set()
        self.held = False
        self.measured = Links()
        self._events: deque[HealthEvent] = deque()
        self._news = threading.Event()
        self._gates: dict[int | None, threading.Event] = {}
        self._busy: str | None = None
        self._pause = threading.Event()

    @property
    def busy_with(self) -> str | None:
        return self._busy

    def hang(self, number: int | None) -> None:
        """Looks at this device do not come back, or with None looks at no device in particular."""
        self._gates[number] = threading.Event()

    def release(self) -> None:
        gates, self._gates = self._gates, {}
        for gate in gates.values():
            gate.set()

    def send(self, *events: HealthEvent) -> None:
        self._events.extend(events)
        self._news.set()

    def discover(self) -> Discovery:
        self._enter("discover")
        sightings = []
        for number in self.numbers:
            item = device(number)
            self._busy = item.uuid
            self._wait(number)
            self._busy = None
            sightings.append(Sighting(device=item, fault=self.faults.get(number)))
        self._wait(None)
        return Discovery(sightings=tuple(sightings), problems=("a card without a name",), facts={"driver": "1.0"})

    def links(self) -> Links:
        self._enter("links")
        return self.measured

    def poll(self, timeout: float):
        self._enter("poll")
        self._news.wait(timeout)
        self._news.clear()
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def close(self) -> None:
        self._enter("close")

    def _enter(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.get_ident())
        if self.trouble:
            raise self.trouble

    def _wait(self, number: int | None) -> None:
        if self.delay:
            self._pause.wait(self.delay)
        if gate := self._gates.get(number):
            self.held = True
            gate.wait()
            self.held = False
