"""What was handed out to whom, in memory and in a journal that a killed daemon finds again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from hami_plugin.log import logger
from hami_plugin.model.placement import Grant
from hami_plugin.policy.identity import Held

log = logger(__name__)

Key = tuple[str, str, str]


class EntryLog(Protocol):
    """Where the ledger writes itself down. ``hami_plugin.host.files.Journal`` is one."""

    lines: int

    def read(self) -> list[dict[str, Any]]: ...

    def append(self, entry: Mapping[str, Any]) -> None: ...

    def rewrite(self, entries: Iterable[Mapping[str, Any]]) -> None: ...


class Ledger:
    """Shares by (pod UID, container, resource). A share is reserved on the event loop, then written, then answered."""

    SLACK = 512

    def __init__(self, journal: EntryLog) -> None:
        self._journal = journal
        self._held: dict[Key, Held] = {}
        self._devices: dict[str, dict[Key, Held]] = {}

    @property
    def held(self) -> Mapping[Key, Held]:
        return self._held

    def on(self, uuid: str) -> Collection[Held]:
        """The shares of one device."""
        return self._devices.get(uuid, {}).values()

    def load(self) -> int:
        """Read the journal: what a former life of the daemon handed out. Answers how many shares."""
        for entry in self._journal.read():
            try:
                self._replay(entry)
            except (KeyError, TypeError, ValueError) as error:
                log.warning("journal entry passed over", problem=repr(error))
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
        """Put a reserved share on file, before the kubelet hears of it. OSError when the disk refuses."""
        self._journal.append({"op": "hold", **_entry(held)})
        if self._journal.lines > 2 * len(self._held) + self.SLACK:
            self._compact()

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
        """Losing such a note costs a repeated patch after a restart, no more."""
        try:
            self._journal.append(entry)
        except OSError as error:
            log.warning("journal not written", problem=str(error))

    def _compact(self) -> None:
        """Write only what still counts. A disk that refuses leaves the longer journal, which is as good."""
        entries = [{"op": "hold", **_entry(held)} for held in self._held.values()]
        try:
            self._journal.rewrite(entries)
        except OSError as error:
            log.warning("journal not compacted", problem=str(error))

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
        known = self._held.get(held.key)
        if known and known.grants != held.grants:
            self._unlist(known)
        self._held[held.key] = held
        for grant in held.grants:
            self._devices.setdefault(grant.uuid, {})[held.key] = held

    def _take(self, key: Key) -> bool:
        """Whether there was such a share."""
        held = self._held.pop(key, None)
        if held:
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
    return (str(uid), str(container), str(resource))


def _entry(held: Held) -> dict[str, Any]:
    return {
        "uid": held.uid,
        "namespace": held.namespace,
        "pod": held.pod,
        "container": held.container,
        "resource": held.resource,
        "ids": sorted(held.ids),
        "grants": [[grant.uuid, grant.word, grant.memory, grant.cores, grant.notes] for grant in held.grants],
        "init": held.init,
        "settled": held.settled,
        **({"undecided": True} if held.undecided else {}),
    }


def _held(entry: Mapping[str, Any]) -> Held:
    return Held(
        uid=str(entry["uid"]),
        namespace=str(entry["namespace"]),
        pod=str(entry["pod"]),
        container=str(entry["container"]),
        resource=str(entry["resource"]),
        ids=frozenset(map(str, entry["ids"])),
        grants=tuple(
            Grant(
                uuid=str(uuid), word=str(word), memory=int(memory), cores=int(cores), notes=notes[0] if notes else None
            )
            for uuid, word, memory, cores, *notes in entry["grants"]
        ),
        init=bool(entry["init"]),
        settled=bool(entry["settled"]),
        undecided=bool(entry.get("undecided", False)),
    )
