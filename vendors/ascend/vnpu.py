"""Virtual NPUs, cut by a template through DCMI when a container is allocated, and destroyed after its pod.

Where Ascend's container runtime sees the containers, it cuts them itself, and nothing of this is used. A chip has sums
and no places: AI cores, AI CPUs and memory.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from hami_plugin.errors import DriverReason, DriverUnavailableError, HamiError, RefusalReason, RefusedError
from hami_plugin.host.paths import DEV, HostFiles
from hami_plugin.model.placement import Assignment
from hami_plugin.model.views import PodView
from hami_plugin.protocol.grammar import from_json, int_of, object_of, text_of, to_json
from hami_plugin.protocol.keys import OWN
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.protocol.pods import decode_devices, requesting_containers
from hami_plugin.sdk import (
    NOWHERE,
    InUseError,
    NoRoomError,
    Partition,
    Placement,
    Profile,
    Reservation,
    Step,
    UnlistedCardsError,
)
from vendors.ascend.dcmi import Dcmi, DcmiError, NoDcmiError, Unit, Vnpu
from vendors.ascend.driver import library_places
from vendors.ascend.rules import soft
from vendors.ascend.settings import AscendSettings, Chip, Template

NODE_DEADLINE_S = 2.0
"""How long the node of a new one may take to appear."""
NODE_INTERVAL_S = 0.02
_NAME = re.compile(r"vir(\d{1,2})[0-9a-z_]{0,12}")


def annotation_key(chip: Chip) -> str:
    """The pod's annotation with the virtual NPU of each of its containers."""
    return f"{OWN}vnpus-{chip.device_type}"


class VnpuPartitions:
    """A ``PartitionDriver`` for the NPUs of one kind. Called by one thread at a time.

    A virtual NPU is named by its number, which is unique on the host, and its template.
    """

    def __init__(
        self,
        settings: AscendSettings,
        chip: Chip,
        host: HostFiles,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        **loading: Callable[[str], Any],
    ) -> None:
        self._chip = chip
        self._host = host
        self._dev = settings.dev_root or DEV
        self._dcmi = Dcmi(library_places(settings), **loading)
        self._sleep = sleep
        self._clock = clock

    def profiles(self, _card: str) -> tuple[Profile, ...]:
        chip = self._chip
        return tuple(
            Profile(
                name=one.name,
                memory=one.memory,
                compute=one.ai_cores,
                placements=(NOWHERE,),
                limit=_most(chip, one),
                cores=-(-100 * one.ai_cores // max(1, chip.ai_cores)),
                sums=_sums(chip, one),
            )
            for one in chip.templates
        )

    def partitions(self, card: str = "") -> tuple[Partition, ...]:
        units = self._units()
        if card:
            return tuple(self._listed(card, self._unit(units, card)))
        found: list[Partition] = []
        silent: dict[str, HamiError] = {}
        for uuid, unit in units.items():
            try:
                found += self._listed(uuid, unit)
            except HamiError as error:
                silent[uuid] = error
        if silent:
            why = "; ".join(f"{uuid}: {error}" for uuid, error in silent.items())
            raise UnlistedCardsError(f"virtual NPUs cannot be listed: {why}", list(silent), found)
        return tuple(found)

    def create(self, card: str, profile: str, placement: Placement, step: Step) -> Partition:
        chip, unit = self._chip, self._unit(self._units(), card)
        if placement != NOWHERE or profile not in {one.name for one in chip.templates}:
            raise HamiError(f"{chip.device_type} has no template {profile}")
        there = [sizes(chip, one.profile) for one in self._listed(card, unit)]
        left = _left(chip, there)
        if not sizes(chip, profile).fits(left):
            raise NoRoomError(
                f"{profile}: {card} has {left.cores} AI cores, {left.cpus} AI CPUs and {left.memory} MiB left"
            )
        with _asking():
            number = self._dcmi.create(unit, profile)
        step({"vnpu": number})
        try:
            return self._identified(card, unit, number, profile)
        except HamiError:
            with _asking():
                self._dcmi.destroy(unit, number)
            step({})
            raise

    def destroy(self, partition: Partition, step: Step) -> None:
        unit = self._unit(self._units(), partition.card)
        same = next((one for one in self._vnpus(unit) if _uuid(one) == partition.uuid), None)
        if same is None:
            return
        if same.used:
            raise InUseError(f"a process has virtual NPU {same.id} of {partition.card} open")
        with _asking():
            self._dcmi.destroy(unit, same.id)
        step({})

    def users(self, _partition: Partition) -> Sequence[int]:
        """The driver tells of none."""
        return ()

    def _identified(self, card: str, unit: Unit, number: int, profile: str) -> Partition:
        """What was made, as a listing has it, with its node."""
        self._await_node(number)
        made = [one for one in self._listed(card, unit) if one.ids["vnpu"] == number]
        if [one.profile for one in made] != [profile]:
            raise HamiError(f"{card} was cut by {profile} to virtual NPU {number}, which the driver does not list")
        return made[0]

    def _units(self) -> Mapping[str, Unit]:
        """The NPUs of this kind, by their names."""
        with _asking():
            if not self._dcmi.is_open:
                self._dcmi.open()
            found = {}
            for unit in self._dcmi.units():
                if self._dcmi.chip_name(unit) == self._chip.driver_name:
                    found[self._dcmi.die(unit)] = unit
            return found

    def _unit(self, units: Mapping[str, Unit], card: str) -> Unit:
        if card not in units:
            raise HamiError(f"the driver lists no NPU {card}")
        return units[card]

    def _vnpus(self, unit: Unit) -> tuple[Vnpu, ...]:
        with _asking():
            return self._dcmi.vnpus(unit)

    def _listed(self, card: str, unit: Unit) -> Iterator[Partition]:
        for one in self._vnpus(unit):
            yield Partition(card=card, profile=one.template, placement=NOWHERE, uuid=_uuid(one), ids={"vnpu": one.id})

    def _await_node(self, number: int) -> None:
        node, until = self._dev / f"vdavinci{number}", self._clock() + NODE_DEADLINE_S
        while not self._host.exists(node):
            if self._clock() >= until:
                raise HamiError(f"virtual NPU {number} has no node {node}")
            self._sleep(NODE_INTERVAL_S)


@contextmanager
def _asking() -> Iterator[None]:
    """DCMI's refusals as errors that everybody knows."""
    try:
        yield
    except NoDcmiError as error:
        raise DriverUnavailableError(DriverReason.NO_LIBRARY, str(error)) from error
    except DcmiError as error:
        raise HamiError(str(error)) from error


def _uuid(one: Vnpu) -> str:
    return f"vnpu-{one.id}-{one.template}"


class Size(NamedTuple):
    """What a template takes of a chip; ``memory`` in MiB."""

    cores: int
    cpus: int
    memory: int

    def fits(self, left: Size) -> bool:
        return self.cores <= left.cores and self.cpus <= left.cpus and self.memory <= left.memory


def sizes(chip: Chip, name: str) -> Size:
    """Of one that is not configured its name tells the AI cores, and the rest is in proportion."""
    known = next((one for one in chip.templates if one.name == name), None)
    if known:
        return Size(known.ai_cores, known.ai_cpus, known.memory)
    found = _NAME.fullmatch(name)
    whole = max(1, chip.ai_cores)
    cores = min(int(found[1]), whole) if found else whole
    return Size(cores, -(-chip.ai_cpus * cores // whole), -(-chip.memory_allocatable * cores // whole))


def _left(chip: Chip, there: Sequence[Size]) -> Size:
    """What a chip has beside these. AI CPUs that nobody has configured are as many as anybody wants."""
    cpus = chip.ai_cpus - sum(one.cpus for one in there) if chip.ai_cpus else sum(one.ai_cpus for one in chip.templates)
    cores = chip.ai_cores - sum(one.cores for one in there)
    return Size(cores, cpus, chip.memory_allocatable - sum(one.memory for one in there))


def _sums(chip: Chip, one: Template) -> Mapping[str, tuple[int, int]]:
    """What a template takes beside AI cores, and how much of that its chip has."""
    cpus = {"ai-cpus": (one.ai_cpus, chip.ai_cpus)} if chip.ai_cpus else {}
    return {"memory": (one.memory, chip.memory_allocatable), **cpus}


def _most(chip: Chip, one: Template) -> int:
    """How many of a template a chip holds."""
    return min(
        chip.memory_allocatable // one.memory,
        chip.ai_cores // one.ai_cores if one.ai_cores else chip.memory_allocatable,
        chip.ai_cpus // one.ai_cpus if one.ai_cpus and chip.ai_cpus else chip.memory_allocatable,
    )


def reservations(chip: Chip, pod: PodView) -> list[Reservation]:
    """Each container's, by the decision, with its number once that is told. None for whole NPUs, nor with hami-core."""
    if soft(pod):
        return []
    pieces = [p for p in decode_devices(pod.annotations.get(f"hami.io/{chip.device_type}-devices-allocated", "")) if p]
    containers = requesting_containers(pod, chip.count)
    if len(pieces) != len(containers):
        return []
    recorded = _recorded(chip, pod)
    found = []
    for container, piece in zip(containers, pieces, strict=True):
        template = chip.template(piece[0].memory)
        if len(piece) > 1 or template is None:
            continue
        mine = object_of(recorded, container.name, annotation_key(chip)) or {}
        named = text_of(mine, "uuid", annotation_key(chip))
        found.append(
            Reservation(
                container=container.name,
                device=0,
                card=piece[0].uuid,
                profile=template.name,
                placement=NOWHERE,
                uuid=named,
                ids={"vnpu": int_of(mine, "id", annotation_key(chip), 0)} if named else {},
            )
        )
    return found


def _recorded(chip: Chip, pod: PodView) -> Mapping[str, Any]:
    key = annotation_key(chip)
    text = pod.annotations.get(key, "")
    return object_of({"recorded": from_json(text, key)}, "recorded", key) or {} if text else {}


def wanted_reservations(chip: Chip, assignment: Assignment) -> list[Reservation]:
    """The template of the container's share; nothing for whole NPUs, nor with hami-core."""
    pod, shares = assignment.pod, assignment.shares
    templates = [] if soft(pod) else [one for share in shares if (one := chip.template(share.grant.memory))]
    if not templates:
        return []
    if len(shares) != 1:
        raise RefusedError(
            RefusalReason.NOT_PREPARED,
            f"container {assignment.container.name} of pod {pod.key} is granted parts of {len(shares)} NPUs",
            hint="ask for a part of one, or for whole NPUs",
        )
    card = shares[0].device.uuid
    return [
        Reservation(
            container=assignment.container.name, device=0, card=card, profile=templates[0].name, placement=NOWHERE
        )
    ]


def names(chip: Chip, pod: PodView, pairs: Sequence[tuple[Reservation, Partition]]) -> Mapping[str, str]:
    """The pod's annotation with the virtual NPUs of its containers."""
    made = {one.container: {"id": each.ids["vnpu"], "uuid": each.uuid} for one, each in pairs}
    recorded = dict(sorted({**_recorded(chip, pod), **made}.items()))
    return {annotation_key(chip): to_json(recorded, annotation_key(chip))}


def subtract_blocked(chip: Chip, info: DeviceInfo, blocked: Sequence[Partition]) -> DeviceInfo:
    """The NPU's entry without what virtual NPUs take that no scheduler counts."""
    taken = [sizes(chip, one.profile) for one in blocked]
    cores = sum(one.cores for one in taken) if info.devcore == chip.ai_cores else 0
    return replace(
        info,
        count=max(0, info.count - len(taken)),
        devmem=max(0, info.devmem - sum(one.memory for one in taken)),
        devcore=max(0, info.devcore - cores),
    )
