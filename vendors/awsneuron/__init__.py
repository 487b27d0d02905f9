"""AWS Neuron devices (Inferentia, Trainium): whole ones that are neighbours, or cores of them."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.host.paths import HostPaths
from hami_plugin.host.pci import scan
from hami_plugin.model.machine import Machine
from hami_plugin.model.views import NodeView
from hami_plugin.parity import Parity
from hami_plugin.vendor import Family, Simulator, Vendor
from hami_plugin.wire.nodes import DeviceInfo
from vendors.awsneuron.chips import PCI_DEVICES, PCI_VENDOR
from vendors.awsneuron.family import families
from vendors.awsneuron.node import open_driver
from vendors.awsneuron.settings import AwsNeuronSettings


def _present(settings: AwsNeuronSettings, paths: HostPaths) -> bool:
    return bool(scan(settings.sysfs_root or paths.sysfs, PCI_VENDOR, PCI_DEVICES))


def _simulate(machine: Machine, directory: Path) -> Simulator:
    from vendors.awsneuron.simulation import simulate  # noqa: PLC0415  # needed only here

    return simulate(machine, directory)


def _parity() -> Parity:
    from vendors.awsneuron.parity import parity  # noqa: PLC0415  # only comparisons with HAMi need it

    return parity()


def _described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
    """AWS's device plugin reports numbers; the kubelet's label says which machine it is."""
    cores = sum(int(device.extra.get("nc_count", 0)) for device in machine.devices)
    counted = {family.resources.count: len(machine.devices), family.resources.cores: cores}
    kind = machine.name.removeprefix("aws-").replace("-", ".", 1)
    return family.node_devices(
        NodeView(
            name=machine.name,
            labels={"node.kubernetes.io/instance-type": kind},
            capacity={name: str(number) for name, number in counted.items()},
        )
    )


VENDOR = Vendor(
    name="awsneuron",
    title="AWS Neuron devices",
    settings=AwsNeuronSettings,
    open=open_driver,
    present=_present,
    families=families,
    simulate=_simulate,
    parity=_parity,
    described=_described,
    machine_vendors=("aws-neuron",),
)
