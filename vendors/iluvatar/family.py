"""Iluvatar GPUs: one family for each chip, shared by memory and cores, the first that fit."""

from __future__ import annotations

from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.register import decode_legacy
from hami_plugin.scheduler.engine.policy import Policy, standard
from hami_plugin.scheduler.engine.requests import Admit, Admitted, amount, counted
from hami_plugin.sdk import AnnotationKeys, Family, Resources
from vendors.iluvatar.settings import Chip, IluvatarSettings

UNIT = 256
"""MiB that one unit of memory stands for."""

CONTAINER_NAME = "SOL_CONTINER_NAME"
"""The agent reads it so spelt."""


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
    resources = Resources(count=chip.count, memory=chip.memory, cores=chip.cores, memory_factor=UNIT)
    return Family.registered(chip.word, keys, resources, policy, decode=decode_legacy, admit=admission(chip))


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
