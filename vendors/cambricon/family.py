"""Cambricon MLUs: shared by memory and cores, the first that fit, with a node lock of their own."""

from __future__ import annotations

from collections.abc import Mapping

from hami_plugin.config.settings import ResourceName, VendorSettings, setting
from hami_plugin.model.views import PodView
from hami_plugin.parity import Json, Parity, differences
from hami_plugin.policy.admission import if_limited
from hami_plugin.policy.checks import CHARGED, standard, within_quota
from hami_plugin.policy.engine import Policy
from hami_plugin.policy.registered import summed
from hami_plugin.policy.requests import amount, counted
from hami_plugin.policy.states import Given
from hami_plugin.vendor import AnnotationKeys, Family, LockRule, ResourceNames, Vendor, both_keys

WORD = "MLU"
UNIT = 256
"""MiB that one unit of memory stands for."""

WAITING = ("CAMBRICON_DSMLU_ASSIGNED", "CAMBRICON_DSMLU_ASSIGHED")
"""What tells Cambricon's agent that a pod waits for its share: as HAMi spells it, and as the agent does."""

PROFILE = "CAMBRICON_DSMLU_PROFILE"


class CambriconSettings(VendorSettings):
    """Keys of HAMi's ``cambricon`` section, with its defaults."""

    count: ResourceName = setting("resourceCountName", "cambricon.com/vmlu", "Number of MLUs.")
    memory: ResourceName = setting(
        "resourceMemoryName", "cambricon.com/mlu.smlu.vmemory", "Memory of each MLU in 256 MiB."
    )
    cores: ResourceName = setting("resourceCoreName", "cambricon.com/mlu.smlu.vcore", "Percent of each MLU's cores.")


def families(settings: CambriconSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    names = ResourceNames(count=settings.count, memory=settings.memory, cores=settings.cores)
    memory, cores = amount(names.memory, factor=UNIT), amount(names.cores, fraction="ignore")
    policy = Policy(
        request=counted(WORD, count=amount(names.count), memory=memory, cores=cores, default_cores=100),
        serves=standard(WORD, uuids=("cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid")),
        checks=(within_quota(memory=names.memory, cores=names.cores, factor=UNIT), *CHARGED),
    )
    return (
        Family(
            word=WORD,
            resources=names,
            annotations=AnnotationKeys(
                to_allocate="hami.io/cambricon-mlu-devices-to-allocate",
                allocated="hami.io/cambricon-mlu-devices-allocated",
            ),
            policy=policy,
            admit=if_limited(names.count),
            node_devices=summed(names.cores, names.memory, each=100, unit=UNIT, name="cambricon-mlu", word=WORD),
            patch=patch,
            lock=LockRule(annotation="cambricon.com/dsmlu.lock", expires_s=120.0, named=False),
            memory_factor=UNIT,
        ),
    )


def patch(family: Family, pod: PodView, given: Given) -> Mapping[str, str]:
    """The agent serves one share a pod, the first: its card, percent of cores, and units of memory."""
    waiting = {**both_keys(family, pod, given), **dict.fromkeys(WAITING, "false")}
    first = next((grant for piece in given[family.word] for grant in piece), None)
    if first is None:
        return waiting
    return {**waiting, PROFILE: f"{first.index}_{first.cores}_{first.memory // UNIT}"}


def _written(question: Json) -> bool:
    return bool(question["fn"] == "patch_annotations" and question["vendor"] == WORD)


def _waits_by_both_names(_question: Json, ours: Json, theirs: Json) -> bool:
    """The same annotations, and the agent's spelling says what HAMi's says."""
    written = dict(theirs["annotations"])
    return bool(ours["annotations"] == {**written, WAITING[1]: written.get(WAITING[0], "")})


def _parity() -> Parity:
    return Parity(differences=differences({"D-160": (_written, _waits_by_both_names)}))


VENDOR = Vendor(name="cambricon", title="Cambricon MLUs", settings=CambriconSettings, families=families, parity=_parity)
