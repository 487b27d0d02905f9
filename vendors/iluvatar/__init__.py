"""Iluvatar GPUs: one family for each chip, shared by memory and cores, the first that fit. ``ixsmi`` lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import StringConstraints

from hami_plugin.config.settings import AbsolutePath, Section
from hami_plugin.config.vendors import ResourceName, ToolSettings, TrustSettings, setting
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.nodes import DeviceInfo, decode_legacy, encode_legacy
from hami_plugin.scheduler.engine.devices import Admit, Admitted, amount, count_request
from hami_plugin.scheduler.engine.policy import Policy, standard
from hami_plugin.sdk import (
    AnnotationKeys,
    Card,
    Family,
    Hardware,
    NodeSide,
    Resources,
    address,
    comma_lists,
    listed_vendor,
    read_loads,
    read_table,
)

# Settings


class IluvatarChip(Section):
    """An entry of HAMi's ``iluvatars``."""

    chip: str = setting("chipName", "", "What people call the chip.")
    device_type: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=40)
    ] = setting("commonWord", ..., "The chip's name in annotations.")
    count: ResourceName = setting("resourceCountName", ..., "Number of GPUs.")
    memory: ResourceName = setting("resourceMemoryName", ..., "Memory of each GPU in 256 MiB.")
    cores: ResourceName = setting("resourceCoreName", ..., "Percent of each GPU's cores.")


def _chip(name: str) -> IluvatarChip:
    resource = f"iluvatar.ai/{name}"
    return IluvatarChip.model_construct(  # defaults need no check, and so no validator is built
        chip=name, device_type=name, count=f"{resource}-vgpu", memory=f"{resource}.vMem", cores=f"{resource}.vCore"
    )


class IluvatarSettings(ToolSettings, TrustSettings):
    """HAMi's list ``iluvatars`` with its defaults, then ours."""

    cdi_class: ClassVar[str] = "iluvatar"
    cdi_class_help: ClassVar[str] = "Class part of CDI names, before the chip's name."

    hami_section: ClassVar[str] = "iluvatars"
    hami_list: ClassVar[str] = "chips"

    chips: tuple[IluvatarChip, ...] = setting(
        "chips", tuple(map(_chip, ("MR-V100", "MR-V50", "BI-V150", "BI-V100"))), "The chips and their resources."
    )
    split_count: int = setting("splitCount", 10, "How many containers may share a GPU.", ge=1, le=1000)
    ixsmi: AbsolutePath = setting("ixsmi", Path("/usr/local/corex/bin/ixsmi"), "Iluvatar's tool, which lists the GPUs.")


# Rules

UNIT = 256
"""MiB that one unit of memory stands for."""

CONTAINER_NAME = "SOL_CONTINER_NAME"
"""The agent reads it so spelt."""


def families(settings: IluvatarSettings) -> tuple[Family, ...]:
    """One for each chip."""
    return tuple(map(family, settings.chips))


def family(chip: IluvatarChip) -> Family:
    """The chip is chosen by the resource's name."""
    policy = Policy(
        request=count_request(
            chip.device_type,
            count=amount(chip.count),
            memory=amount(chip.memory, factor=UNIT),
            cores=amount(chip.cores, fraction="ignore"),
        ),
        serves=standard(
            chip.device_type, uuids=(f"hami.io/use-{chip.device_type}-uuid", f"hami.io/no-use-{chip.device_type}-uuid")
        ),
    )
    keys = AnnotationKeys.of_agent(chip.device_type)
    resources = Resources(
        device_type=chip.device_type, count=chip.count, memory=chip.memory, cores=chip.cores, memory_factor=UNIT
    )
    return Family.registered(resources, keys, policy, decode=decode_legacy, admit=admission(chip))


def admission(chip: IluvatarChip) -> Admit:
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


# Driver

GPUS = Hardware(title="Iluvatar GPU", vendors=("1e3e",), module="iluvatar", node="iluvatar")
INDEX, UUID, MODEL, ADDRESS, MEMORY = COLUMNS = ("index", "uuid", "name", "pci.bus_id", "memory.total")
QUERY = (f"--query-gpu={','.join(COLUMNS)}", "--format=csv")
IN_USE = (ADDRESS, "memory.used", "utilization.gpu")
LOAD_QUERY = (f"--query-gpu={','.join(IN_USE)}", "--format=csv")
CONTROL = "itrctl"
LINK = "itrlink"
"""The node by which GPUs reach each other's memory, on machines that can."""


def naming(settings: IluvatarSettings, _paths: HostPaths, card: Card) -> tuple[str, str] | None:
    """The family of a GPU is that of its chip."""
    device_type = chip_of(card.model, (chip.device_type for chip in settings.chips))
    return (device_type, card.uuid) if device_type else None


def chip_of(model: str, chips: Iterable[str]) -> str:
    """The chip that a model is, as ``BI-V150`` of ``Iluvatar BI-V150``; empty when it is none of them."""
    return next((chip for chip in chips if chip in model.split()), "")


def list_cards(settings: IluvatarSettings, _paths: HostPaths) -> Iterable[Card | str]:
    """The GPUs of the tool's table."""
    return read_table(settings.ixsmi, COLUMNS, card, *QUERY, deadline=settings.tool_seconds)


def loads(settings: IluvatarSettings) -> Mapping[str, DeviceLoad]:
    return read_loads(settings.ixsmi, IN_USE, *LOAD_QUERY, deadline=settings.tool_seconds)


def card(row: Mapping[str, str]) -> Card | str:
    """One row, or what is wrong with it where it names no GPU."""
    index, uuid, memory = row[INDEX], row[UUID], row[MEMORY]
    if not index.isdecimal():
        return f"ixsmi names no GPU in {dict(row)}"
    if not uuid.startswith("GPU-"):
        return f"ixsmi knows no UUID of GPU {index}, but {uuid[:64]!r}"
    return Card.of_row(
        "ixsmi", index=int(index), uuid=uuid, model=row[MODEL], address=address(row[ADDRESS]), memory=memory
    )


# Injection


def node_side(settings: IluvatarSettings, family: Family, usual: NodeSide) -> NodeSide:
    """One chip's. Its scheduler side reads the register of HAMi 2.7 to this day."""
    kind = f"{settings.delivery.kind}-{family.resources.device_type.lower()}"
    shares = settings.split_count if settings.unlimited_shares else 1
    return replace(
        usual,
        delivery=replace(settings.delivery, kind=kind),
        whole_only=settings.whole_only("Iluvatar's own agent"),
        replicas=lambda _device: shares,
        register=partial(register, shares),
        encode=encode_legacy,
        reports=True,
    )


def register(shares: int, device: Device, _legacy: bool) -> DeviceInfo:
    numa = max(0, device.numa or 0)
    return DeviceInfo.of(device, device.family, count=shares, numa=numa, mode=device.mode)


env = comma_lists(IX_VISIBLE_DEVICES=lambda device: device.uuid)
"""Which GPUs Iluvatar's own runtime would add, where it is the one that runs the container."""


# Vendor

VENDOR = listed_vendor(
    name="iluvatar",
    title="Iluvatar GPUs",
    noun="GPU",
    settings=IluvatarSettings,
    families=families,
    hardware=GPUS,
    list_cards=list_cards,
    loads=loads,
    naming=naming,
    device_nodes=("iluvatar{}",),
    control_nodes=(CONTROL,),
    optional_nodes=(LINK,),
    env=env,
    node=node_side,
)
