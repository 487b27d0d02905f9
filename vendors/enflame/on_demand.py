"""Partitions (DRS) that ``efsmi`` cuts for a container when it is allocated, and destroys after its pod; their mode.

A card has slices, and no places: what matters is how many are left. Which partition a container has stands in
the annotation that Enflame's own agent uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.model.placement import Assignment, Share
from hami_plugin.model.views import PodView
from hami_plugin.protocol.grammar import from_json, object_of, to_json
from hami_plugin.protocol.pods import decode_devices, requesting_containers
from hami_plugin.sdk import (
    NOWHERE,
    InUseError,
    Mode,
    NoRoomError,
    Partition,
    Placement,
    Profile,
    Reservation,
    Step,
    ToolError,
    read,
)
from vendors.enflame import driver, partitions
from vendors.enflame.driver import DRS
from vendors.enflame.drs import DEVICE_TYPE, KEYS
from vendors.enflame.partitions import MIB_PER_GB, SLICES, UNITS, cut_of, number, size, slices_left
from vendors.enflame.rules import CARDS, NAMES
from vendors.enflame.rules import SLICES as SHARED_SLICES
from vendors.enflame.settings import EnflameSettings

SWITCH_DEADLINE_S = 20.0
OFF = "Disable"
"""What the tool says of a card that is not cut, nor shared in another way."""
ASSIGNED = "assigned-containers"
"""The pod's annotation with each container's partition: Enflame's agent fills in the instance."""


class DrsPartitions:
    """A ``PartitionDriver``. ``name`` is what the scheduler's names of cards end in, before their numbers."""

    def __init__(self, settings: EnflameSettings, name: str, *, deadline: float = 5.0) -> None:
        self._tool = settings.efsmi
        self._name = name
        self._deadline = deadline

    def profiles(self, card: str) -> tuple[Profile, ...]:
        index = _index(card)
        try:
            names = self._profiles(index)
        except ToolError:
            if index in self._divided():
                raise
            return ()
        return tuple(
            Profile(
                name=name,
                memory=size(name)[1] * MIB_PER_GB,
                compute=size(name)[0],
                placements=(NOWHERE,),
                limit=SLICES // size(name)[0],
                cores=-(-UNITS * size(name)[0] // SLICES),
            )
            for name in names
            if 0 < size(name)[0] <= SLICES
        )

    def partitions(self, card: str = "") -> tuple[Partition, ...]:
        if not card and not self._divided():
            return ()
        listed = read(self._tool, driver.instances, "-L", deadline=self._deadline)
        wanted = listed if not card else {index: there for index, there in listed.items() if index == _index(card)}
        return tuple(
            Partition(
                card=f"{self._name}-{index}",
                profile=one.profile,
                placement=NOWHERE,
                uuid=one.uuid,
                ids={"instance": one.number},
            )
            for index, there in wanted.items()
            for one in there
        )

    def create(self, card: str, profile: str, placement: Placement, step: Step) -> Partition:
        """The tool does not say what it has made: that is what was not there before."""
        index = _index(card)
        known = self._profiles(index)
        if profile not in known or placement != NOWHERE:
            raise HamiError(f"{card} cannot be cut to {profile}; its profiles are {', '.join(known) or 'unknown'}")
        before = self.partitions(card)
        left = slices_left(one.profile for one in before)
        if size(profile)[0] > left:
            raise NoRoomError(f"{card} has {left} slices left, and {profile} takes {size(profile)[0]}")
        self._do(index, "--create-instance", known[profile])
        names = {one.uuid for one in before}
        made = [one for one in self.partitions(card) if one.uuid not in names]
        if len(made) != 1 or made[0].profile != profile:
            there = ", ".join(f"{one.profile} {one.uuid}" for one in made) or "nothing"
            raise HamiError(f"efsmi was asked for {profile} of {card}, and there is {there} that was not before")
        step(made[0].ids)
        return made[0]

    def destroy(self, partition: Partition, step: Step) -> None:
        if not self._is_there(partition):
            return
        problem = ""
        try:
            self._do(_index(partition.card), "--destroy-instance", str(partition.ids["instance"]))
        except ToolError as error:
            problem = str(error)
        if self._is_there(partition):
            raise InUseError(problem or f"efsmi has destroyed {partition.uuid} of {partition.card}, and still lists it")
        step({})

    def users(self, _partition: Partition) -> Sequence[int]:
        """The tool tells of none."""
        return ()

    def _is_there(self, partition: Partition) -> bool:
        return any((one.uuid, one.ids) == (partition.uuid, partition.ids) for one in self.partitions(partition.card))

    def _divided(self) -> set[int]:
        """The cards in DRS mode. The tool lists no partitions where there is none."""
        table = read(self._tool, lambda text: tuple(driver.rows(text)), deadline=self._deadline)
        return {row.index for row in table if row.virtual == DRS}

    def _profiles(self, index: int) -> Mapping[str, str]:
        return read(self._tool, driver.profiles, "-i", str(index), "--drs", "--list-profile", deadline=self._deadline)

    def _do(self, index: int, *arguments: str) -> None:
        read(self._tool, len, "-i", str(index), "--drs", *arguments, deadline=self._deadline)


class DrsModes:
    """A ``ModeDriver``: whether cards can be cut. ``efsmi`` knows no mode that waits for a reset."""

    def __init__(self, settings: EnflameSettings, *, deadline: float = 5.0) -> None:
        self._tool = settings.efsmi
        self._deadline = deadline

    def mode(self, card: str) -> Mode:
        virtual = self._virtual(_index(card))
        on = virtual == DRS
        return Mode(capable=True, current=on, pending=on, problem=self._problem(_index(card), virtual))

    def switch(self, card: str, *, on: bool) -> None:
        before = self.mode(card)
        if before.current == on:
            return
        if before.problem:
            raise HamiError(f"the DRS mode of {card} is not switched: {before.problem}")
        state = "on" if on else "off"
        read(self._tool, len, "-i", str(_index(card)), "--drs", state, deadline=SWITCH_DEADLINE_S)
        if self.mode(card).current != on:
            raise HamiError(f"efsmi has switched the DRS mode of {card} {state}, and does not say so")

    def _virtual(self, index: int) -> str:
        table = read(self._tool, lambda text: tuple(driver.rows(text)), deadline=self._deadline)
        found = next((row.virtual for row in table if row.index == index), None)
        if found is None:
            raise HamiError(f"efsmi does not list card {index}")
        return found

    def _problem(self, index: int, virtual: str) -> str:
        if virtual == DRS:
            there = len(read(self._tool, driver.instances, "-L", deadline=self._deadline).get(index, ()))
            return f"the card has {there} partition(s)" if there else ""
        return "" if virtual == OFF else f"efsmi says {virtual} of its partitions: another virtualisation has it"


def _index(card: str) -> int:
    return int(card.rpartition("-")[2])


def name_of(device_type: str) -> str:
    """What the scheduler's names of a family's cards contain."""
    return next(name for kind, name in NAMES.values() if kind == device_type)


def reservations(settings: EnflameSettings, device_type: str, pod: PodView) -> list[Reservation]:
    """One reservation per container, with uuid and instance if annotated; else its profile is the percentage."""
    pieces = [piece for piece in decode_devices(pod.annotations.get(KEYS.allocated, "")) if piece]
    resources = (settings.drs, settings.memory, settings.cores) if device_type == DEVICE_TYPE else (settings.shared,)
    containers = requesting_containers(pod, *resources, *(() if device_type == DEVICE_TYPE else (CARDS, SHARED_SLICES)))
    if len(pieces) != len(containers):
        return []
    recorded = _recorded(pod)
    found = []
    for container, piece in zip(containers, pieces, strict=True):
        mine = object_of(recorded, container.name, ASSIGNED) or {}
        uuid, instance = str(mine.get("instanceUUID") or ""), str(mine.get("instanceID") or "")
        share = f"{piece[0].memory or UNITS}%" if device_type != DEVICE_TYPE else ""
        sized = f"{partitions.slices(piece[0])}g.{piece[0].memory // MIB_PER_GB}gb"
        found.append(
            Reservation(
                container=container.name,
                device=0,
                card=piece[0].uuid,
                profile=str(mine.get("profileName") or share or sized),
                placement=NOWHERE,
                uuid=uuid if uuid and instance else "",
                ids={"instance": number(instance)} if uuid and instance else {},
            )
        )
    return [one for one in found if one.card.rpartition("-")[0].endswith(f"-{name_of(device_type)}")]


def _recorded(pod: PodView) -> Mapping[str, object]:
    text = pod.annotations.get(ASSIGNED, "")
    return object_of({"recorded": from_json(text, ASSIGNED)}, "recorded", ASSIGNED) or {} if text else {}


def wanted_reservations(assignment: Assignment) -> list[Reservation]:
    """The smallest partition that serves the container's share, or the one of its size."""
    shares, pod = assignment.shares, assignment.pod
    if len(shares) != 1:
        raise one_only(assignment)
    return [
        Reservation(
            container=assignment.container.name,
            device=0,
            card=shares[0].device.uuid,
            profile=_profile(shares[0], pod),
            placement=NOWHERE,
        )
    ]


def one_only(assignment: Assignment) -> RefusedError:
    """Why a container cannot have what it is granted."""
    name, pod, count = assignment.container.name, assignment.pod, len(assignment.shares)
    return RefusedError(
        RefusalReason.NOT_PREPARED,
        f"container {name} of pod {pod.key} is granted {count} partitions of cards, and can be told of one",
        hint="ask for one card, or serve whole cards",
    )


def _profile(share: Share, pod: PodView) -> str:
    cut = cut_of(share.device)
    offered = dict.fromkeys(cut.profiles if cut else (), 1)
    if share.device.family == DEVICE_TYPE:
        found = partitions.for_partition(share.grant, offered)
    else:
        found = partitions.for_percent(share.grant.memory or UNITS, offered)
    if not found:
        raise RefusedError(
            RefusalReason.NOT_PREPARED,
            f"pod {pod.key} is granted {share.grant.memory} of {share.device.uuid}, which cannot be cut to it; "
            f"its profiles are {', '.join(offered) or 'unknown'}",
        )
    return found


def names(pod: PodView, pairs: Sequence[tuple[Reservation, Partition]]) -> Mapping[str, str]:
    """As Enflame's agent tells which instance a container has."""
    recorded = {name: dict(value) if isinstance(value, dict) else {} for name, value in _recorded(pod).items()}
    for wanted_one, made in pairs:
        recorded[wanted_one.container] = {
            "request": size(made.profile)[0],
            **recorded.get(wanted_one.container, {}),
            "allocated": True,
            "profileName": made.profile,
            "instanceID": str(made.ids["instance"]),
            "instanceUUID": made.uuid,
        }
    return {ASSIGNED: to_json(dict(sorted(recorded.items())), ASSIGNED), "enflame.com/gcu-assigned": "true"}
