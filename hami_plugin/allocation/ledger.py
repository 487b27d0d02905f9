"""What was handed out to whom, in memory and in a journal that a killed daemon finds again."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from hami_plugin.allocation.identity import Held
from hami_plugin.log import logger
from hami_plugin.model.placement import Grant

log = logger(__name__)

Key = tuple[str, str, str]

MAX_NAMED = 5
MAX_TEXT = 4096
MAX_AMOUNT = 1 << 63


class EntryLog(Protocol):
    """Where the ledger writes itself down. ``hami_plugin.allocation.journal.JournalWriter`` is one."""

    problem: str

    @property
    def unreadable(self) -> tuple[str, ...]:
        """What was passed over when it was read, in words."""

    def read(self) -> list[dict[str, Any]]: ...

    def append(self, entry: Mapping[str, Any], held: int, whole: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Have an entry written after those before it. Where these are lost, the ``whole`` is written anew."""

    def check(self, whole: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Have the ``whole`` written anew, if what was written is lost."""

    async def written(self) -> None:
        """Wait until the last entry is on file. OSError when the disk refuses."""


class Ledger:
    """Shares by (pod UID, container, resource). A share is reserved on the event loop, then written, then answered."""

    def __init__(self, journal: EntryLog) -> None:
        self._journal = journal
        self._held: dict[Key, Held] = {}
        self._devices: dict[str, dict[Key, Held]] = {}
        self.held: Mapping[Key, Held] = MappingProxyType(self._held)
        self.version = 0
        """Moves with every change of what is held."""

    def on(self, uuid: str) -> Collection[Held]:
        """The shares of one device."""
        return self._devices.get(uuid, {}).values()

    @property
    def problem(self) -> str:
        """Why what is held is not on file, in words; empty while it is."""
        return self._journal.problem

    def load(self) -> int:
        """Read the journal: what a former life of the daemon handed out. Answers how many shares."""
        entries = self._journal.read()
        for words in self._journal.unreadable[:MAX_NAMED]:
            log.warning("journal line passed over", problem=words)
        if len(self._journal.unreadable) > MAX_NAMED:
            log.warning("journal lines passed over", more=len(self._journal.unreadable) - MAX_NAMED)
        for entry in entries:
            try:
                self._replay(entry)
            except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
                log.warning("journal entry passed over", problem=repr(error)[:200])
        return len(self._held)

    def reserve(self, held: Held) -> None:
        """Take the share, in memory only. From here on nobody else can be given it.

        An id that the kubelet hands out anew is no other pod's any more, whether or not that pod's end has been seen.
        """
        others = [h for h in self._held.values() if h.uid != held.uid and _meet(held, h.resource, h.ids)]
        for other in others:
            self._take(other.key)
        self._put(held)

    def write(self, held: Held) -> None:
        """Have a reserved share put on file. The kubelet must not hear of it before ``written``."""
        self._journal.append({"op": "hold", **_entry(held)}, len(self._held), self._whole())

    async def written(self) -> None:
        """Wait until all that was noted is on file. OSError when the disk refuses."""
        await self._journal.written()

    def check(self) -> None:
        """Have the journal written anew, if somebody took it away."""
        self._journal.check(self._whole())

    def settle(self, keys: Iterable[Key]) -> None:
        """The API server has confirmed that these shares are recorded at their pod."""
        for key in keys:
            held = self._held.get(key)
            if held and not held.settled:
                self._put(replace(held, settled=True))
                self._note({"op": "settled", "key": list(key)})

    def drop(self, keys: Iterable[Key]) -> None:
        """These shares are nobody's any more."""
        for key in list(keys):
            if self._take(key):
                self._note({"op": "drop", "key": list(key)})

    def of_pod(self, uid: str) -> list[Held]:
        return [held for held in self._held.values() if held.uid == uid]

    def _note(self, entry: Mapping[str, Any]) -> None:
        """Losing a note of what is settled or gone costs a repeated patch after a restart, no more."""
        self._journal.append(entry, len(self._held), self._whole())

    def _whole(self) -> Callable[[], Iterable[Mapping[str, Any]]]:
        """All that counts as of now, for whoever writes it down later."""
        held = tuple(self._held.values())
        return lambda: ({"op": "hold", **_entry(one)} for one in held)

    def _replay(self, entry: Mapping[str, Any]) -> None:
        match entry["op"]:
            case "hold":
                self.reserve(_held(entry))
            case "settled":
                key = _key(entry)
                if key in self._held:
                    self._put(replace(self._held[key], settled=True))
            case "drop":
                self._take(_key(entry))

    def _put(self, held: Held) -> None:
        """One that is only changed keeps its place among the others."""
        key = held.key
        known = self._held.get(key)
        if known and known.grants != held.grants:
            self._unlist(known)
        self.version += 1
        self._held[key] = held
        for grant in held.grants:
            self._devices.setdefault(grant.uuid, {})[key] = held

    def _take(self, key: Key) -> bool:
        """Whether there was such a share."""
        held = self._held.pop(key, None)
        if held:
            self.version += 1
            self._unlist(held)
        return held is not None

    def _unlist(self, held: Held) -> None:
        for uuid in {grant.uuid for grant in held.grants}:
            of_device = self._devices[uuid]
            del of_device[held.key]
            if not of_device:
                del self._devices[uuid]


def _meet(held: Held, resource: str, ids: frozenset[str]) -> bool:
    return held.resource == resource and not held.ids.isdisjoint(ids)


def _key(entry: Mapping[str, Any]) -> Key:
    uid, container, resource = entry["key"]
    return (_text(uid), _text(container), _text(resource))


def _entry(held: Held) -> dict[str, Any]:
    return {
        "uid": held.uid,
        "namespace": held.namespace,
        "pod": held.pod,
        "container": held.container,
        "resource": held.resource,
        "ids": sorted(held.ids),
        "grants": [[grant.uuid, grant.device_type, grant.memory, grant.cores, grant.notes] for grant in held.grants],
        "init": held.init,
        "settled": held.settled,
        **({"undecided": True} if held.undecided else {}),
    }


def _held(entry: Mapping[str, Any]) -> Held:
    return Held(
        uid=_text(entry["uid"]),
        namespace=_text(entry["namespace"]),
        pod=_text(entry["pod"]),
        container=_text(entry["container"]),
        resource=_text(entry["resource"]),
        ids=frozenset(map(_text, entry["ids"])),
        grants=tuple(
            Grant(
                uuid=_text(uuid),
                device_type=_text(device_type),
                memory=_amount(memory),
                cores=_amount(cores),
                notes=_notes(*notes),
            )
            for uuid, device_type, memory, cores, *notes in entry["grants"]
        ),
        init=bool(entry["init"]),
        settled=bool(entry["settled"]),
        undecided=bool(entry.get("undecided", False)),
    )


def _text(value: object) -> str:
    """A name as it was written. What is none would fail later, where it is shown or compared."""
    if not isinstance(value, str) or len(value) > MAX_TEXT or not (value.isprintable() or not value):
        raise ValueError(f"{value!r:.80} is no name")
    return value


def _amount(value: object) -> int:
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= MAX_AMOUNT:
        raise ValueError(f"{value!r:.80} is no amount from 0 to {MAX_AMOUNT}")
    return int(value)


def _notes(notes: object = None, *_later: object) -> Mapping[str, Any] | None:
    if notes is not None and not isinstance(notes, dict):
        raise ValueError(f"{notes!r:.80} are no notes")
    return notes
