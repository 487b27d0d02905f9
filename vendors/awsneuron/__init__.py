"""AWS Neuron devices (Inferentia, Trainium): whole ones that are neighbours, or cores of them."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.host.paths import HostPaths
from hami_plugin.host.pci import scan
from hami_plugin.model.machine import Machine
from hami_plugin.parity import Parity
from hami_plugin.vendor import Simulator, Vendor
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


VENDOR = Vendor(
    name="awsneuron",
    title="AWS Neuron devices",
    settings=AwsNeuronSettings,
    open=open_driver,
    present=_present,
    families=families,
    simulate=_simulate,
    parity=_parity,
    machine_vendors=("aws-neuron",),
)
