"""AWS Neuron devices (Inferentia, Trainium): whole ones that are neighbours, or cores of them."""

from __future__ import annotations

from hami_plugin.sdk import Vendor
from hami_plugin.sdk.lazy import deferred
from vendors.awsneuron.chips import NEURONS
from vendors.awsneuron.family import families
from vendors.awsneuron.node import open_driver
from vendors.awsneuron.settings import AwsNeuronSettings

VENDOR = Vendor(
    name="awsneuron",
    title="AWS Neuron devices",
    noun="NEURON",
    settings=AwsNeuronSettings,
    families=families,
    open=open_driver,
    present=NEURONS.present,
    simulate=deferred("vendors.awsneuron.simulation.simulate"),
    machines=("aws-neuron",),
)
