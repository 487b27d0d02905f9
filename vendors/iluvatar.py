"""Iluvatar GPUs: one family for each chip, shared by memory and cores, the first that fit."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import StringConstraints

from hami_plugin.config.settings import ResourceName, Section, VendorSettings, setting
from hami_plugin.model.machine import Machine
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.policy.admission import Admit, Admitted
from hami_plugin.policy.checks import standard
from hami_plugin.policy.engine import Policy
from hami_plugin.policy.requests import amount, counted
from hami_plugin.vendor import AnnotationKeys, Family, ResourceNames, Vendor, as_described
from hami_plugin.wire.nodes import DeviceInfo, decode_legacy

UNIT = 256
"""MiB that one unit of memory stands for."""

CONTAINER_NAME = "SOL_CONTINER_NAME"
"""The agent reads it so spelt."""


class Chip(Section):
    """An entry of HAMi's ``iluvatars``."""

    chip: str = setting("chipName", "", "What people call the chip.")
    word: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=40)] = (
        setting("commonWord", ..., "The chip's word in annotations.")
    )
    count: ResourceName = setting("resourceCountName", ..., "Number of GPUs.")
    memory: ResourceName = setting("resourceMemoryName", ..., "Memory of each GPU in 256 MiB.")
    cores: ResourceName = setting("resourceCoreName", ..., "Percent of each GPU's cores.")


def _chip(word: str) -> Chip:
    name = f"iluvatar.ai/{word}"
    return Chip(chip=word, word=word, count=f"{name}-vgpu", memory=f"{name}.vMem", cores=f"{name}.vCore")


class IluvatarSettings(VendorSettings):
    """HAMi's list ``iluvatars``, with its defaults."""

    hami_section: ClassVar[str] = "iluvatars"
    hami_list: ClassVar[str] = "chips"

    chips: tuple[Chip, ...] = setting(
        "chips", tuple(map(_chip, ("MR-V100", "MR-V50", "BI-V150", "BI-V100"))), "The chips and their resources."
    )


def families(settings: IluvatarSettings) -> tuple[Family, ...]:
    """One for each chip."""
    return tuple(map(family, settings.chips))


def family(chip: Chip) -> Family:
    """The chip is chosen by the resource's name."""
    policy = Policy(
        request=counted(
            chip.word,
            count=amount(chip.count),
            memory=amount(chip.memory, factor=UNIT),
            cores=amount(chip.cores, fraction="ignore"),
        ),
        serves=standard(chip.word, uuids=(f"hami.io/use-{chip.word}-uuid", f"hami.io/no-use-{chip.word}-uuid")),
    )
    keys = AnnotationKeys.of_agent(chip.word)
    names = ResourceNames(count=chip.count, memory=chip.memory, cores=chip.cores)
    admit = admission(chip)
    return Family.registered(chip.word, names, keys, policy, decode=decode_legacy, admit=admit, memory_factor=UNIT)


def admission(chip: Chip) -> Admit:
    """Several GPUs are whole ones. The agent finds the container by its name."""

    def admit(container: ContainerView, _pod: PodView) -> Admitted:
        if chip.count not in container.limits:
            return Admitted(found=False)
        count = container.amount(chip.count)
        named = CONTAINER_NAME in container.env or not container.name
        return Admitted(
            found=True,
            limits={chip.cores: str(100 * count)} if count > 1 else {},
            env={} if named else {CONTAINER_NAME: container.name},
        )

    return admit


def _described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
    """One chip's GPUs: those whose model ends with its word."""
    named = {device.index for device in machine.devices if device.model.endswith(f" {family.word}")}
    return tuple(info for info in as_described(family, machine) if info.index in named)


VENDOR = Vendor(
    name="iluvatar", title="Iluvatar GPUs", settings=IluvatarSettings, families=families, described=_described
)
