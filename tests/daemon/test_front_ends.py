"""Which front end a vendor has where the settings leave it open, and when that is decided anew."""

import asyncio
import json
from dataclasses import dataclass, field

import pytest

from hami_plugin.config.load import Configuration
from hami_plugin.config.settings import Settings
from hami_plugin.daemon.front_ends import FILE, FrontEnds, decide
from hami_plugin.errors import ClusterError
from hami_plugin.model.views import NodeView
from hami_plugin.process.concurrency import Watched
from hami_plugin.sdk import load_vendor

LABEL = "hami-plugin.io/nvidia-front-end"


@dataclass
class Cluster:
    labels: dict = field(default_factory=dict)
    minor: int = 37
    claims: bool = True
    away: bool = False

    async def get_node(self):
        if self.away:
            raise ClusterError("the API server is away")
        return NodeView(name="n1", labels=self.labels)

    async def minor_version(self):
        return self.minor

    async def serves_claims(self):
        return self.claims


@pytest.fixture
def configuration(tmp_path):
    def made(registry=True, **sections):
        for folder in ("state", *(["kubelet/plugins_registry"] if registry else [])):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        settings = Settings.model_validate(
            {"nodeName": "n1", "stateDir": tmp_path / "state", "kubeletDir": tmp_path / "kubelet/device-plugins"}
        )
        found = sections or {"nvidia": {}}
        vendors = {
            name: load_vendor(name).settings.model_validate({"frontEnd": "auto", **section})
            for name, section in found.items()
        }
        return Configuration(settings=settings, sections=vendors)

    return made


@pytest.mark.parametrize(
    ("cluster", "registry", "section", "wanted"),
    [
        (Cluster(), True, {}, "dra"),
        (Cluster(minor=35), True, {}, "device-plugin"),
        (Cluster(claims=False), True, {}, "device-plugin"),
        (Cluster(), False, {}, "device-plugin"),
        (Cluster(), True, {"operatingMode": "mig"}, "device-plugin"),
        (Cluster(labels={LABEL: "device-plugin"}), True, {}, "device-plugin"),
        (Cluster(labels={LABEL: "dra"}), True, {}, "dra"),
        (Cluster(labels={LABEL: "dra"}, minor=35), True, {}, "device-plugin"),
        (Cluster(labels={LABEL: "daemon"}), True, {}, "device-plugin"),
        (Cluster(labels={LABEL: "auto"}), True, {}, "dra"),
    ],
    ids=["able", "old", "without the API", "without the directory", "mig", "label", "dra", "unable", "slip", "auto"],
)
async def test_claims_are_chosen_where_all_can_serve_them_and_the_label_does_not_say_otherwise(
    configuration, cluster, registry, section, wanted
):
    chosen, _unable = await decide(configuration(registry, nvidia=section), cluster)

    assert chosen == {"nvidia": wanted}


async def test_each_vendor_has_its_own_and_those_that_are_set_keep_theirs(configuration):
    made = configuration(nvidia={"frontEnd": "dra"}, amd={}, ascend={"frontEnd": "device-plugin"})

    chosen, unable = await decide(made, Cluster(labels={"hami-plugin.io/amd-front-end": "device-plugin"}))

    settled = FrontEnds(chosen=chosen, unable=unable).settled(made)
    assert {name: section.front_end for name, section in settled.sections.items()} == {
        "nvidia": "dra",
        "amd": "device-plugin",
        "ascend": "device-plugin",
    }


async def test_what_was_is_kept_while_the_api_server_is_away(configuration, tmp_path):
    made = configuration()
    assert (await decide(made, Cluster(away=True))) == ({"nvidia": "device-plugin"}, {})
    await decide(made, Cluster())

    assert (await decide(made, Cluster(away=True))) == ({"nvidia": "dra"}, {})
    (tmp_path / "state" / FILE).write_text("[" * 5000)
    assert (await decide(made, Cluster(away=True))) == ({"nvidia": "device-plugin"}, {})
    (tmp_path / "state" / FILE).write_text(json.dumps({"nvidia": "../x"}))
    assert (await decide(made, Cluster(away=True))) == ({"nvidia": "device-plugin"}, {})


async def test_a_label_that_changes_ends_the_process_and_one_that_does_not_matter_does_not():
    ended = asyncio.Event()
    node = Watched(None)
    ends = FrontEnds(chosen={"nvidia": "dra"}, unable={"nvidia": ""}, again=ended.set)
    task = asyncio.create_task(ends.follow(node))
    for labels in (
        {},
        {LABEL: "dra"},
        {LABEL: "auto", "other": "x"},
        {"hami-plugin.io/amd-front-end": "device-plugin"},
    ):
        node.set(NodeView(name="n1", labels=labels))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not ended.is_set()

    node.set(NodeView(name="n1", labels={LABEL: "device-plugin"}))

    await asyncio.wait_for(ended.wait(), 60)
    task.cancel()


async def test_what_was_not_decided_by_the_cluster_is_not_changed_by_a_label():
    ended = asyncio.Event()
    node = Watched(NodeView(name="n1", labels={}))
    task = asyncio.create_task(FrontEnds(chosen={"nvidia": "device-plugin"}, again=ended.set).follow(node))

    await asyncio.sleep(0.01)

    assert not ended.is_set()
    task.cancel()
