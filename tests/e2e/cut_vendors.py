"""Vendors whose cards are cut for claims: what is asked for, and what their own drivers say is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hami_plugin.demo.node import GUARD_S, NODE
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.sdk import Partition, PartitionDriver
from tests.e2e.claiming import staged
from vendors.ascend.settings import AscendSettings
from vendors.ascend.vnpu import VnpuPartitions
from vendors.cambricon.cndev import Cndev
from vendors.cambricon.settings import CambriconSettings
from vendors.cambricon.smlu import SmluPartitions
from vendors.enflame.on_demand import DrsPartitions
from vendors.enflame.settings import EnflameSettings
from vendors.nvidia.partitions import MigPartitions
from vendors.nvidia.settings import NvidiaSettings

LOOK_S = 0.1
"""Between looks at the hardware, which cost a hundred times what other conditions do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutVendor:
    """``prepare`` sets the simulated cards up, and ``tool`` opens the vendor's own driver of them.

    ``part`` is a small partition, as a listing names it, and ``asked`` the request that has it. ``boots``: a boot of
    the host unmakes all. ``deaths`` are what its simulated tool may be told to do to a call, by ``order``, while one is
    made and while it is destroyed: kill whoever calls.
    """

    name: str
    profile: str
    section: Mapping[str, Any]
    part: str
    asked: Mapping[str, Any]
    tool: Callable[[Any], PartitionDriver]
    prepare: Callable[[Any], None] = lambda _stage: None
    boots: bool = False
    deaths: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    order: Callable[[Any, str], None] = lambda _stage, _death: None

    @property
    def driver(self) -> str:
        return f"{self.name}.hami.io"

    def staged(self, set_up: Any, directories: Any) -> Any:
        return staged(set_up, directories, vendor=self.name, profile=self.profile, **self.section)

    def there(self, stage: Any) -> Sequence[Partition]:
        return self.tool(stage).partitions()

    async def nothing_left(self, stage: Any) -> None:
        for _look in range(round(GUARD_S / LOOK_S)):
            if not self.there(stage):
                break
            await asyncio.sleep(LOOK_S)
        assert self.there(stage) == ()
        assert stage.leaks() == []


def asking(vendor: str, profile: str) -> dict[str, Any]:
    """A partition of a profile."""
    expression = f'device.attributes["{vendor}.hami.io"].profile == "{profile}"'
    return {"deviceClassName": f"partitions.{vendor}.hami.io", "selectors": [{"cel": {"expression": expression}}]}


def amounts(vendor: str, **asked: str) -> dict[str, Any]:
    """A partition of any size."""
    return {"deviceClassName": f"{vendor}.hami.io", "capacity": {"requests": asked}}


def mig(stage: Any) -> MigPartitions:
    settings = NvidiaSettings.model_validate(stage.node.hardware.settings)
    return MigPartitions(settings, HostFiles(paths=HostPaths().rooted(settings)))


def in_mig_mode(stage: Any) -> None:
    """All cards are in MIG mode, and whole."""
    for card in stage.node.hardware.machine.devices:
        mig(stage).switch(card.uuid, on=True)


def drs(stage: Any) -> DrsPartitions:
    return DrsPartitions(EnflameSettings.model_validate(stage.node.hardware.settings), f"{NODE}-enflame-drs")


def smlu(stage: Any) -> SmluPartitions:
    return SmluPartitions(Cndev(CambriconSettings.model_validate(stage.node.hardware.settings).cndev), NODE)


def vnpu(stage: Any) -> VnpuPartitions:
    settings = AscendSettings.model_validate(stage.node.hardware.settings)
    chip = next(chip for chip in settings.chips if chip.device_type == "Ascend910B3")
    return VnpuPartitions(settings, chip, HostFiles(paths=HostPaths()))


NVIDIA = CutVendor(
    name="nvidia",
    profile="hgx-a100-4gpu",
    section={"operatingMode": "mig"},
    part="1g.5gb",
    asked=asking("nvidia", "1g.5gb"),
    tool=mig,
    prepare=in_mig_mode,
    boots=True,
)
ENFLAME = CutVendor(
    name="enflame",
    profile="enflame-s60-8-drs",
    section={"serve": "partitions"},
    part="2g.16gb",
    asked=asking("enflame", "2g.16gb"),
    tool=drs,
    deaths=(("create:die-before", "create:die-after"), ("destroy:die-before", "destroy:die-after")),
    order=lambda stage, death: stage.node.hardware.simulator.inject("order", 0, death),
)
CAMBRICON = CutVendor(
    name="cambricon",
    profile="cambricon-mlu590-8",
    section={"mode": "dynamic-smlu"},
    part="30%.3072mib",
    asked=amounts("cambricon", memory="3000Mi", cores="30"),
    tool=smlu,
    prepare=lambda stage: stage.node.hardware.simulator.inject("smlu-mode"),
    boots=True,
    deaths=(
        ("cndevCreateSMluProfileInfo die", "cndevCreateSMluInstanceByProfileId die"),
        ("cndevDestroySMluInstanceByHandle die", "cndevDestroySMluProfileInfo die"),
    ),
    order=lambda stage, death: stage.node.hardware.simulator.inject("smlu-call", 0, death),
)
ASCEND = CutVendor(
    name="ascend",
    profile="ascend-910b3-8",
    section={"cutForClaims": True},
    part="vir05_1c_16g",
    asked=asking("ascend", "vir05_1c_16g"),
    tool=vnpu,
    deaths=(("create die-before", "create die-after"), ("destroy die-before", "destroy die-after")),
    order=lambda stage, death: stage.node.hardware.simulator.inject("order", value=death),
)
CUT_VENDORS = (NVIDIA, ENFLAME, CAMBRICON, ASCEND)
