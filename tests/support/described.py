"""The devices that each vendor's node agents would register on a machine of a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from hami_plugin.model.machine import Machine
from hami_plugin.model.views import NodeView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.sdk import Family, Vendor
from vendors.ascend.settings import CHIPS
from vendors.enflame.rules import CARDS
from vendors.iluvatar import chip_of
from vendors.metax import rules
from vendors.mthreads import CARD_CORES

Devices = tuple[DeviceInfo, ...]


def described(vendor: Vendor, family: Family, machine: Machine) -> Devices:
    """One family's devices on this machine."""
    return _BY_VENDOR.get(vendor.name, _usual)(family, machine)


def _usual(family: Family, machine: Machine) -> Devices:
    """Ten shares of each device, and cores in percent."""
    return tuple(
        DeviceInfo(
            id=device.uuid or f"{machine.name}-{device.index}",
            index=device.index,
            count=10,
            devmem=device.memory,
            devcore=100,
            type=family.resources.device_type,
            numa=max(0, device.numa),
            mode="hami-core",
            health=True,
            vendor=family.resources.device_type,
        )
        for device in machine.devices
    )


def _amd(family: Family, machine: Machine) -> Devices:
    """With compute units for cores."""
    units = {device.index: int(device.extra.get("compute_units", 0)) for device in machine.devices}
    return tuple(replace(info, devcore=units[info.index]) for info in _usual(family, machine))


def _ascend(family: Family, machine: Machine) -> Devices:
    """One family's chips: those that the driver calls by its name."""
    name, memory = (
        CHIPS[family.resources.device_type][:2]
        if family.resources.device_type in CHIPS
        else (family.resources.device_type, 0)
    )
    cores = {device.index: int(device.extra.get("aicore", 0)) for device in machine.devices if device.model == name}
    return tuple(
        replace(info, devmem=min(info.devmem, memory or info.devmem), devcore=cores[info.index])
        for info in _usual(family, machine)
        if info.index in cores
    )


def _awsneuron(family: Family, machine: Machine) -> Devices:
    """AWS's device plugin reports numbers; the kubelet's label says which machine it is."""
    cores = sum(int(device.extra.get("nc_count", 0)) for device in machine.devices)
    counted = {family.resources.count: len(machine.devices), family.resources.cores: cores}
    kind = machine.name.removeprefix("aws-").replace("-", ".", 1)
    return family.rules.node_devices(
        NodeView(
            name=machine.name,
            labels={"node.kubernetes.io/instance-type": kind},
            capacity={name: str(number) for name, number in counted.items()},
        )
    )


def _enflame(family: Family, machine: Machine) -> Devices:
    """Enflame's plugins report how many cards there are. How cards can be cut (DRS) no profile says."""
    count = str(len(machine.devices))
    capacity = {CARDS: count, family.resources.count: count}
    return family.rules.node_devices(NodeView(name=machine.name, capacity=capacity))


def _iluvatar(family: Family, machine: Machine) -> Devices:
    """One chip's GPUs: those whose model ends with its word."""
    named = {device.index for device in machine.devices if chip_of(device.model, [family.resources.device_type])}
    return tuple(info for info in _usual(family, machine) if info.index in named)


def _metax(family: Family, machine: Machine) -> Devices:
    """Whole GPUs have no shares. Shares know the zone of linked GPUs that theirs is in."""
    whole = family.resources.device_type == rules.WHOLE_TYPE
    zones = {device.index: device.extra.get("link_zone", 0) for device in machine.devices}
    return tuple(
        replace(info, count=1) if whole else replace(info, custom={"LinkZone": zones[info.index], "QosPolicy": ""})
        for info in _usual(family, machine)
    )


def _mthreads(family: Family, machine: Machine) -> Devices:
    return tuple(replace(info, devcore=CARD_CORES) for info in _usual(family, machine))


_BY_VENDOR: Mapping[str, Callable[[Family, Machine], Devices]] = {
    "amd": _amd,
    "ascend": _ascend,
    "awsneuron": _awsneuron,
    "enflame": _enflame,
    "iluvatar": _iluvatar,
    "metax": _metax,
    "mthreads": _mthreads,
}
