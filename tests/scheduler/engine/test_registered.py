"""Which devices a node has by its own capacity, and what no node can have."""

import pytest

from hami_plugin.errors import WireError
from hami_plugin.model.views import NodeView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import from_capacity, from_summed_capacity

COUNTED = from_capacity("a/card", lambda _node, number, _count: DeviceInfo(id=f"c{number}"))
SUMMED = from_summed_capacity("a/core", "a/memory", each=16, unit=512, name="a", device_type="A")


def node(**capacity):
    return NodeView(name="n1", capacity={f"a/{name}": text for name, text in capacity.items()})


def test_devices_are_as_many_as_the_capacity_says():
    assert [one.id for one in COUNTED(node(card="3"))] == ["c0", "c1", "c2"]
    assert [one.devmem for one in SUMMED(node(core="32", memory="96"))] == [24576, 24576]


@pytest.mark.parametrize("text", ["-1", "many", "0", ""])
def test_a_capacity_that_counts_nothing_is_no_device(text):
    assert COUNTED(node(card=text)) == SUMMED(node(core=text, memory=text)) == ()


def test_a_node_that_tells_of_more_devices_than_any_can_have_is_not_believed():
    with pytest.raises(WireError, match="node n1 tells of 1G a/card, which is 1000000000 devices; no node has more"):
        COUNTED(node(card="1G"))
    with pytest.raises(WireError, match="tells of 1000000 a/core, which is 62500 devices"):
        SUMMED(node(core="1000000", memory="1"))
