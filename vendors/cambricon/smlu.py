"""sMLU instances made and destroyed: Cambricon's ``PartitionDriver``, and the mode that they need.

An instance is an amount of cores and memory, cut by a profile of these amounts, and has no place on its MLU.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hami_plugin.errors import HamiError
from hami_plugin.process.log import logger
from hami_plugin.sdk import (
    NOWHERE,
    InUseError,
    Mode,
    NoRoomError,
    Partition,
    Placement,
    Profile,
    Step,
    UnlistedCardsError,
)
from hami_plugin.sdk.tools import output
from vendors.cambricon.cndev import IN_USE, NO_ROOM, NOT_FOUND, Cndev, CndevError, SmluInstance
from vendors.cambricon.rules import name

_AMOUNTS = re.compile(r"(\d{1,3})%\.(\d{1,9})mib")

MODE_DEADLINE_S, MODE_INTERVAL_S, SWITCH_DEADLINE_S = 10.0, 0.2, 20.0

log = logger(__name__)


def amounts(cores: int, memory: int) -> str:
    """The name of a part; ``memory`` in MiB."""
    return f"{cores}%.{memory}mib"


def amounts_of(part: str) -> tuple[int, int]:
    """Percent of cores, and MiB, of a part by its name. What cannot be read takes all."""
    found = _AMOUNTS.fullmatch(part)
    return (int(found[1]), int(found[2])) if found else (100, 1 << 30)


def number_of(card: str, node: str) -> int:
    """The number of one of the node's MLUs, by its name."""
    number = card.rpartition("-")[2]
    if not number.isdecimal() or name(node, int(number)) != card:
        raise HamiError(f"{card} is no MLU of this node")
    return int(number)


class SmluModes:
    """A ``ModeDriver`` of the MLUs of ``node``: CNDev tells the mode, and ``tool`` (cnmon) switches it."""

    def __init__(
        self,
        library: Cndev,
        node: str,
        tool: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._library, self._node, self._tool = library, node, tool
        self._clock, self._sleep = clock, sleep

    def mode(self, card: str) -> Mode:
        number = number_of(card, self._node)
        on = self._library.mode(number)
        if on is None:
            return Mode(capable=False)
        there = len(self._library.instances(number)) if on else 0
        problem = f"the MLU has {there} sMLU instance(s)" if there else ""
        return Mode(capable=True, current=on, pending=on, problem=problem)

    def switch(self, card: str, *, on: bool) -> None:
        number, before = number_of(card, self._node), self.mode(card)
        if before.current == on:
            return
        if before.problem:
            raise HamiError(f"the sMLU mode of {card} is not switched: {before.problem}")
        output(self._tool, "set", "-c", str(number), "-smlu", "on" if on else "off", deadline=SWITCH_DEADLINE_S)
        end = self._clock() + MODE_DEADLINE_S
        while self.mode(card).current != on:
            if self._clock() >= end:
                raise HamiError(f"cnmon has switched the sMLU mode of {card}, and CNDev does not say so")
            self._sleep(MODE_INTERVAL_S)


class SmluPartitions:
    """A ``PartitionDriver`` of the MLUs of ``node``. A profile without instances is an incomplete partition."""

    def __init__(self, library: Cndev, node: str) -> None:
        self._library, self._node = library, node

    def profiles(self, _card: str) -> tuple[Profile, ...]:
        """There are none to choose from: an MLU is cut to whatever amounts are left of it."""
        return ()

    def partitions(self, card: str = "") -> tuple[Partition, ...]:
        if card:
            return tuple(self._listed(self._number(card)))
        found: list[Partition] = []
        silent: dict[str, CndevError] = {}
        for number in range(self._library.cards()):
            try:
                found += self._listed(number)
            except CndevError as error:
                silent[name(self._node, number)] = error
        if silent:
            why = "; ".join(f"{one}: {error}" for one, error in silent.items())
            raise UnlistedCardsError(f"sMLU instances cannot be listed: {why}", list(silent), found)
        return tuple(found)

    def create(self, card: str, profile: str, placement: Placement, step: Step) -> Partition:
        number, wanted = self._number(card), _AMOUNTS.fullmatch(profile)
        if wanted is None or placement != NOWHERE:
            raise HamiError(f"{profile} at {placement} is no part of {card}")
        if not self._library.divisible(number):
            raise HamiError(f"{card} is not in sMLU mode", hint=f"cnmon set -c {number} -smlu on")
        ids: dict[str, int] = {}
        own = False
        try:
            with _no_room(card, profile):
                ids["profile"], own = self._shape(card, int(wanted[1]), int(wanted[2]))
                step(ids)
                ids["instance"] = self._library.create_instance(number, ids["profile"])
            step(ids)
            return self._made(number, profile, ids)
        except Exception:
            self._undo(number, ids, step, own=own)
            raise

    def destroy(self, partition: Partition, step: Step) -> None:
        number = self._number(partition.card)
        if not self._library.divisible(number):
            return  # nothing outlives the mode
        there = self._library.instances(number)
        same = next((one for one in there if partition.uuid and one.id == partition.ids.get("instance")), None)
        if same is not None:
            if same.uuid != partition.uuid:
                raise HamiError(f"instance {same.id} of {partition.card} is not {partition.uuid}: somebody has made it")
            with _in_use(partition):
                self._library.destroy_instance(number, same.id)
            step({key: value for key, value in partition.ids.items() if key != "instance"})
        self._drop_shape(number, partition)
        step({})

    def users(self, _partition: Partition) -> Sequence[int]:
        """CNDev does not say who has an instance open."""
        return ()

    def _number(self, card: str) -> int:
        return number_of(card, self._node)

    def _listed(self, number: int) -> Iterator[Partition]:
        """All of one MLU. Profiles are asked for first: one whose instance comes meanwhile is not an incomplete one."""
        if not self._library.divisible(number):
            return
        shapes, there = self._library.profiles(number), self._library.instances(number)
        yield from (self._partition(number, one) for one in there)
        used = {one.profile for one in there}
        for shape in shapes:
            if shape.id not in used:
                yield Partition(
                    card=name(self._node, number),
                    profile=amounts(shape.cores, shape.memory),
                    placement=NOWHERE,
                    ids={"profile": shape.id},
                )

    def _partition(self, number: int, one: SmluInstance) -> Partition:
        return Partition(
            card=name(self._node, number),
            profile=amounts(one.cores, one.memory),
            placement=NOWHERE,
            uuid=one.uuid,
            ids={"profile": one.profile, "instance": one.id},
        )

    def _shape(self, card: str, cores: int, memory: int) -> tuple[int, bool]:
        """The profile of these amounts, and whether it was made for them. An MLU has each but once."""
        number = self._number(card)
        known = [one for one in self._library.profiles(number) if (one.cores, one.memory) == (cores, memory)]
        if not known:
            return self._library.create_profile(number, cores, memory), True
        if not any(one.left for one in known):
            raise NoRoomError(f"{card} has no room for another {amounts(cores, memory)}")
        return next(one.id for one in known if one.left), False

    def _made(self, number: int, profile: str, ids: Mapping[str, int]) -> Partition:
        listed = [self._partition(number, one) for one in self._library.instances(number)]
        found = next((one for one in listed if one.ids == ids), None)
        if found is None or found.profile != profile or not found.uuid:
            raise HamiError(f"CNDev has made instance {ids['instance']} of MLU {number}, and lists {found or 'none'}")
        return found

    def _undo(self, number: int, ids: dict[str, int], step: Step, *, own: bool) -> None:
        """Take back what was made. The error that led here is the one that counts; what stays is in the last step."""
        with suppress(CndevError):
            if "instance" in ids:
                self._library.destroy_instance(number, ids["instance"])
                del ids["instance"]
            if own:
                self._library.destroy_profile(number, ids["profile"])
                del ids["profile"]
        left = ids if own or "instance" in ids else {}
        if left:
            log.warning("an sMLU instance that failed could not be taken back", card=number, **left)
        with suppress(Exception):  # a journal that fails must not leave more behind
            step(left)

    def _drop_shape(self, number: int, partition: Partition) -> None:
        """The profile goes with its last instance, if it is still the same. Whoever made another one of it needs it."""
        shape = partition.ids.get("profile")
        same = any(
            one.id == shape and amounts(one.cores, one.memory) == partition.profile
            for one in self._library.profiles(number)
        )
        if not same or any(one.profile == shape for one in self._library.instances(number)):
            return
        try:
            self._library.destroy_profile(number, partition.ids["profile"])
        except CndevError as error:
            if error.code not in (IN_USE, NOT_FOUND):
                raise


@contextmanager
def _no_room(card: str, profile: str) -> Iterator[None]:
    try:
        yield
    except CndevError as error:
        if error.code != NO_ROOM:
            raise
        raise NoRoomError(f"{card} has no room for {profile}: {error}") from error


@contextmanager
def _in_use(partition: Partition) -> Iterator[None]:
    """One that is gone meanwhile is destroyed as well."""
    try:
        yield
    except CndevError as error:
        if error.code == IN_USE:
            raise InUseError(f"{partition.profile} of {partition.card} ({partition.uuid}) is in use") from error
        if error.code != NOT_FOUND:
            raise
