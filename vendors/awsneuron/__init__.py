"""AWS Neuron devices (Inferentia, Trainium): whole ones that are neighbours, or cores of them."""

from __future__ import annotations

from hami_plugin.sdk import Vendor, deferred, serving
from vendors.awsneuron.driver import NEURONS, open_driver
from vendors.awsneuron.injection import node_side
from vendors.awsneuron.rules import families
from vendors.awsneuron.settings import AwsNeuronSettings

VENDOR = Vendor(
    name="awsneuron",
    title="AWS Neuron devices",
    noun="NEURON",
    settings=AwsNeuronSettings,
    families=serving(families, node_side),
    open=open_driver,
    present=NEURONS.present,
    simulate=deferred("vendors.awsneuron.simulation.simulate"),
    machines=("aws-neuron",),
)
