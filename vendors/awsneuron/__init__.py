"""AWS Neuron devices (Inferentia, Trainium): whole ones that are neighbours, or cores of them."""

from __future__ import annotations

from hami_plugin.parity import Parity
from hami_plugin.vendor import Vendor
from vendors.awsneuron.family import AwsNeuronSettings, families


def _parity() -> Parity:
    from vendors.awsneuron.parity import parity  # noqa: PLC0415  # only comparisons with HAMi need it

    return parity()


VENDOR = Vendor(
    name="awsneuron", title="AWS Neuron devices", settings=AwsNeuronSettings, families=families, parity=_parity
)
