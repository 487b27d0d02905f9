"""The ``awsneuron`` section: HAMi's keys, and where this node's driver and tool are."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import ResourceName, TreeSettings, setting


class AwsNeuronSettings(TreeSettings):
    """Keys of HAMi's ``awsneuron`` section with its defaults, then ours."""

    cdi_class: ClassVar[str] = "neuron"

    count: ResourceName = setting("resourceCountName", "aws.amazon.com/neuron", "Number of whole devices.")
    cores: ResourceName = setting("resourceCoreName", "aws.amazon.com/neuroncore", "Number of cores.")
    cores_per_device: int = setting(
        "coresPerDevice", 2, "By how many cores a request is split into devices before its node is known.", ge=1, le=30
    )
    logical_core_size: int | None = setting(
        "logicalCoreSize",
        None,
        "How many physical cores make a logical one, as the Neuron runtime is configured. "
        "Empty: 2 on Trainium2, 1 elsewhere.",
        ge=1,
        le=2,
    )
    neuron_ls: AbsolutePath = setting(
        "neuronLs", Path("/opt/aws/neuron/bin/neuron-ls"), "AWS's tool, which knows each device's PCI address."
    )
