"""AWS Neuron devices (Inferentia, Trainium): whole ones that are neighbours, or cores of them."""

from __future__ import annotations

from hami_plugin.model.machine import Machine
from hami_plugin.model.views import NodeView
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Facts, Family, Vendor
from hami_plugin.sdk.lazy import deferred
from vendors.awsneuron.chips import NEURONS
from vendors.awsneuron.family import families
from vendors.awsneuron.node import open_driver
from vendors.awsneuron.settings import AwsNeuronSettings


def _described(family: Family, machine: Machine) -> tuple[DeviceInfo, ...]:
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


FACTS = Facts(parity=deferred("vendors.awsneuron.parity.parity"), described=_described, machines=("aws-neuron",))
VENDOR = Vendor(
    name="awsneuron",
    title="AWS Neuron devices",
    noun="NEURON",
    settings=AwsNeuronSettings,
    families=families,
    open=open_driver,
    present=NEURONS.present,
    simulate=deferred("vendors.awsneuron.simulation.simulate"),
    facts=FACTS,
)
