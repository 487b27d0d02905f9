"""What has been made ready for claims: in memory, in a journal that a killed daemon finds again, and as CDI specs.

An entry is written before anything is done for a claim, and again once all is done. The kubelet remembers a claim
longer than a reboot, and a runtime looks its specs up at each start of a container: so both are kept, whatever the
API server has by now, until the kubelet gives the claim back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from cdi.store import Store
from hami_plugin.allocation.identity import HeldShare
from hami_plugin.allocation.ledger import JournalWriter
from hami_plugin.dra.claims import PreparedShare
from hami_plugin.host.paths import HostFiles, make_shared_directory, write_shared
from hami_plugin.model.placement import Grant
from hami_plugin.partitions.life import OF_CLAIM, Owner
from hami_plugin.partitions.reconciliation import PodReservation
from hami_plugin.process.concurrency import Watched
from hami_plugin.process.log import logger
from hami_plugin.sdk import Reservation
from hami_plugin.sdk.partitions import NOWHERE, Placement

log = logger(__name__)

Key = tuple[str, str]
"""Driver, and the claim's UID."""
MAX_NAMED = 5
PREFIX = "hami-claim_"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """What the kubelet is answered for one device: CDI names for the containers that receive ``request``."""

    request: str
    pool: str
    device: str
    share_id: str
    cdi_devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """The container that a part of the claim was made ready for, with the UUIDs that it has, and their device type.

    ``requests`` are the claim's requests that it receives; empty where an older daemon has made it ready.
    """

    uid: str
    namespace: str
    pod: str
    container: str
    init: bool
    resource: str
    uuids: tuple[str, ...]
    requests: tuple[str, ...] = ()

    def has(self, share: PreparedShare) -> bool:
        """Whether the container has this share of the claim: another one may have another share of the same card."""
        return share.grant.uuid in self.uuids and (not self.requests or share.request in self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A claim that is, or is being, made ready. Until ``done`` nothing has been answered.

    ``spec`` is the text of its CDI spec, empty where containers need none; ``directories`` and ``files`` are on the
    host for its containers. ``boot`` is the boot of the host in which that was done; empty where nobody knows.
    """

    driver: str
    uid: str
    namespace: str
    name: str
    pods: tuple[str, ...] = ()
    shares: tuple[PreparedShare, ...] = ()
    devices: tuple[PreparedDevice, ...] = ()
    receivers: tuple[Receiver, ...] = ()
    spec: str = ""
    directories: tuple[str, ...] = ()
    files: Mapping[str, str] | None = None
    boot: str = ""
    done: bool = False

    @property
    def key(self) -> Key:
        return self.driver, self.uid

    @property
    def claim(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def file(self) -> str:
        """The name of its spec's file."""
        return spec_file(self.driver, self.uid)


def reservations(one: Prepared, device_type: str) -> tuple[PodReservation, ...]:
    """A claim's partitions of cards of that type, in the order of its shares. Each request counts its own."""
    count: Counter[str] = Counter()
    found = []
    for share in one.shares:
        if not share.profile or share.grant.device_type != device_type:
            continue
        number = count[share.request]
        count[share.request] += 1
        owner = Owner(
            uid=one.uid,
            container=share.request,
            device=number,
            namespace=one.namespace,
            pod=f"{OF_CLAIM}{one.name}",
        )
        wanted = Reservation(
            container=share.request,
            device=number,
            card=share.grant.uuid,
            profile=share.profile,
            placement=share.placement,
        )
        found.append(PodReservation(owner=owner, wanted=wanted))
    return tuple(found)


def spec_file(driver: str, uid: str) -> str:
    """The file of a claim's CDI spec."""
    return f"{PREFIX}{driver}_{uid}.json"


class PreparedClaims:
    """All of a node's, of all drivers. ``changes`` moves with each. Call it on the event loop."""

    def __init__(self, journal: JournalWriter) -> None:
        self._journal = journal
        self._all: dict[Key, Prepared] = {}
        self.changes: Watched[int] = Watched(0)
        self.written = journal.written
        """Wait until all that was noted is on file. OSError when the disk refuses."""

    @property
    def problem(self) -> str:
        """Why the newest entry is not on file; empty while all are."""
        return self._journal.problem

    def load(self) -> int:
        """Read the journal. Answers how many claims there are."""
        entries = self._journal.read()
        for reason in self._journal.unreadable[:MAX_NAMED]:
            log.warning("line of the claims' journal skipped", problem=reason)
        for entry in entries:
            try:
                self._replay(entry)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                log.warning("entry of the claims' journal skipped", problem=repr(error)[:200])
        self._changed()
        return len(self._all)

    def get(self, driver: str, uid: str) -> Prepared | None:
        return self._all.get((driver, uid))

    def of(self, driver: str) -> tuple[Prepared, ...]:
        return tuple(one for one in self._all.values() if one.driver == driver)

    def beside(self, key: Key) -> dict[str, Sequence[PreparedShare]]:
        """What all other claims have of devices, by claim."""
        return {one.claim: one.shares for one in self._all.values() if one.key != key}

    def reserve(self, one: Prepared) -> None:
        """Take the devices, in memory only: from here on no other claim can be made ready on them."""
        self._all[one.key] = one
        self._changed()

    def note(self, one: Prepared) -> None:
        """As ``reserve``, and have it put on file. Wait for ``written`` before anything is done about it."""
        self.reserve(one)
        self._append({"op": "claim", **_entry(one)})

    def drop(self, key: Key) -> None:
        """Nothing of the claim is left here."""
        if self._all.pop(key, None):
            self._append({"op": "drop", "driver": key[0], "uid": key[1]})
            self._changed()

    def check(self) -> None:
        """Have the journal written anew, if somebody took it away."""
        everything = tuple(self._all.values())
        self._journal.check(lambda: _whole(everything))

    def held(self) -> Iterator[HeldShare]:
        """What containers have by claims, as the daemon knows what they have by the device plugin."""
        for one in self._all.values():
            for to in one.receivers:
                shares = [share for share in one.shares if to.has(share)]
                yield HeldShare(
                    uid=to.uid,
                    namespace=to.namespace,
                    pod=to.pod,
                    container=to.container,
                    resource=to.resource,
                    ids=frozenset(
                        f"{share.grant.uuid}::{one.uid}-{share.request}-{number}"
                        for share in shares
                        for number in range(share.grant.slots)
                    ),
                    grants=tuple(share.grant for share in shares),
                    init=to.init,
                    settled=True,
                )

    def claimed(self, device_type: str) -> tuple[PodReservation, ...]:
        """The partitions of cards of that type that claims have, or are to have."""
        return tuple(found for one in self._all.values() for found in reservations(one, device_type))

    def gave(self, held: HeldShare) -> bool:
        """Whether the container has it by a claim: the kubelet's account of the device plugin says nothing of that."""
        whose = (held.uid, held.container)
        return any(whose == (to.uid, to.container) for one in self._all.values() for to in one.receivers)

    def _append(self, entry: Mapping[str, Any]) -> None:
        everything = tuple(self._all.values())
        self._journal.append(entry, len(everything), lambda: _whole(everything))

    def _changed(self) -> None:
        self.changes.set(self.changes.value + 1)

    def _replay(self, entry: Mapping[str, Any]) -> None:
        match entry["op"]:
            case "claim":
                one = _prepared(entry)
                self._all[one.key] = one
            case "drop":
                self._all.pop((entry["driver"], entry["uid"]), None)


def _whole(everything: Iterable[Prepared]) -> Iterable[Mapping[str, Any]]:
    return ({"op": "claim", **_entry(one)} for one in everything)


def _entry(one: Prepared) -> dict[str, Any]:
    return {
        "driver": one.driver,
        "uid": one.uid,
        "namespace": one.namespace,
        "name": one.name,
        "pods": list(one.pods),
        "shares": [_share(held) for held in one.shares],
        "devices": [[d.request, d.pool, d.device, d.share_id, list(d.cdi_devices)] for d in one.devices],
        "receivers": [
            [r.uid, r.namespace, r.pod, r.container, r.init, r.resource, list(r.uuids)] for r in one.receivers
        ],
        "received": [list(r.requests) for r in one.receivers],  # beside them: an older daemon reads the rest
        "spec": one.spec,
        "directories": list(one.directories),
        "files": dict(one.files or {}),
        "boot": one.boot,
        "done": one.done,
    }


def _share(held: PreparedShare) -> dict[str, Any]:
    grant = held.grant
    return {
        "request": held.request,
        "device": held.device,
        "share": held.share_id,
        "consumed": [held.memory, held.cores, held.slots],
        "admin": held.admin,
        **({"part": [held.profile, *held.placement]} if held.profile else {}),
        "grant": [grant.uuid, grant.device_type, grant.memory, grant.cores, grant.slots, grant.notes],
    }


def _receiver(written: Sequence[Any], requests: Iterable[object]) -> Receiver:
    uid, namespace, pod, container, init, resource, uuids = written
    return Receiver(
        uid=uid,
        namespace=namespace,
        pod=pod,
        container=container,
        init=bool(init),
        resource=resource,
        uuids=tuple(uuids),
        requests=tuple(map(_text, requests)),
    )


def _prepared(entry: Mapping[str, Any]) -> Prepared:
    return Prepared(
        driver=_text(entry["driver"]),
        uid=_text(entry["uid"]),
        namespace=_text(entry["namespace"]),
        name=_text(entry["name"]),
        pods=tuple(map(_text, entry["pods"])),
        shares=tuple(map(_held, entry["shares"])),
        devices=tuple(
            PreparedDevice(
                request=request, pool=pool, device=device, share_id=share, cdi_devices=tuple(map(_text, ids))
            )
            for request, pool, device, share, ids in entry["devices"]
        ),
        receivers=tuple(map(_receiver, entry["receivers"], entry.get("received") or repeat(()))),
        spec=str(entry["spec"]),
        directories=tuple(map(_text, entry["directories"])),
        files={_text(path): str(text) for path, text in entry["files"].items()},
        boot=_text(entry.get("boot", "")),
        done=bool(entry["done"]),
    )


def _held(share: Mapping[str, Any]) -> PreparedShare:
    uuid, device_type, grant_memory, grant_cores, grant_slots, notes = share["grant"]
    memory, cores, slots = map(int, share["consumed"])
    profile, start, size = share.get("part", ("", *NOWHERE))
    return PreparedShare(
        request=_text(share["request"]),
        device=_text(share["device"]),
        share_id=_text(share["share"]),
        memory=memory,
        cores=cores,
        slots=slots,
        admin=bool(share["admin"]),
        profile=_text(profile),
        placement=Placement(int(start), int(size)),
        grant=Grant(
            uuid=_text(uuid),
            device_type=_text(device_type),
            memory=int(grant_memory),
            cores=int(grant_cores),
            slots=int(grant_slots),
            notes=notes if isinstance(notes, dict) else None,
        ),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no name")
    return value


class ClaimFiles:
    """The host's part of one driver's claims. Every call touches the disk."""

    def __init__(self, driver: str, directory: Path, host: HostFiles) -> None:
        self._store = Store(directory, f"{PREFIX}{driver}_")
        self._host = host

    def lay_out(self, one: Prepared) -> None:
        """Everything that the claim's containers need, as it was answered. ``OSError`` or ``CdiError``."""
        for directory in one.directories:
            make_shared_directory(self._host.seen(directory))
        for path, text in (one.files or {}).items():
            write_shared(self._host.seen(path), text)
        if one.spec:
            self._store.write(one.file, one.spec)

    def remove(self, kept: Iterable[Prepared]) -> None:
        """Remove the specs of all other claims."""
        self._store.remove_others([one.file for one in kept])

    def clean(self, kept: Iterable[Prepared]) -> None:
        """As ``remove``, and what a killed daemon was writing."""
        self._store.clean()
        self.remove(kept)

    def missing(self, kept: Iterable[Prepared]) -> list[Prepared]:
        """Claims whose specs somebody took away."""
        there = set(self._store.names())
        return [one for one in kept if one.spec and one.file not in there]
