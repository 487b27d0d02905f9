"""Toy cards: a vendor from another folder, whose library ends its process when a file says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdi.spec import ContainerEdits
from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import ResourceName, ServedSettings, setting
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import amount, charge_slot, count_request
from hami_plugin.scheduler.engine.policy import Policy, standard
from hami_plugin.sdk import AnnotationKeys, Driver, Family, Injection, NodeSide, Resources, SchedulingRules, Vendor

DEVICE_TYPE = "Toy"


class ToySettings(ServedSettings):
    """Keys of the section ``toy``."""

    count: ResourceName = setting("resourceCountName", "toy.example/card", "Number of cards.")
    orders: AbsolutePath = setting("orders", Path("/nonexistent/orders"), "What the library does to its process.")


def open_driver(settings: ToySettings, _paths: HostPaths) -> Driver:
    """The driver of ``tests/isolated``."""
    from tests.vendor_boundary.toys import ToyDriver  # noqa: PLC0415  # in the other process only

    return ToyDriver(settings.orders)


def present(_settings: Any, paths: HostPaths) -> bool:
    """By a device node."""
    return (paths.dev / "toy0").exists()


def families(settings: ToySettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    policy = Policy(
        request=count_request(DEVICE_TYPE, count=amount(settings.count)),
        serves=standard(DEVICE_TYPE),
        charge=charge_slot,
        checks=(),
    )
    return (
        Family(
            resources=Resources(device_type=DEVICE_TYPE, count=settings.count),
            rules=SchedulingRules(annotations=AnnotationKeys.of_agent("toy"), policy=policy),
            node=NodeSide(register=register, inject=inject, delivery=settings.delivery),
        ),
    )


def register(device: Device, _legacy: bool) -> DeviceInfo:
    """One card is one share."""
    return DeviceInfo(
        id=device.uuid,
        index=device.index,
        count=1,
        devmem=device.memory,
        devcore=100,
        type=DEVICE_TYPE,
        health=device.health.offered,
    )


def inject(assignment: Assignment, _host: HostFiles) -> Injection:
    """The names of the cards."""
    names = ",".join(share.device.uuid for share in assignment.shares)
    return Injection(edits=ContainerEdits(env={"TOY_CARDS": names}))


VENDOR = Vendor(
    name="toy",
    title="Toy cards",
    settings=ToySettings,
    families=families,
    open=open_driver,
    present=present,
    isolated=True,
)
