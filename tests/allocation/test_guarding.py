"""Where a vendor's functions run follows from what the contract hands them."""

import threading
from contextlib import closing
from dataclasses import fields

import pytest

from hami_plugin.errors import VendorError
from hami_plugin.model.delivery import Delivery, Way
from hami_plugin.model.placement import Grant
from hami_plugin.process.concurrency import BoundedCalls
from hami_plugin.sdk import NodeSide, Resources
from hami_plugin.vendor_boundary.guard import Guard, VendorErrors, guard_family
from tests.support.beside import ODD_FAMILY
from tests.support.builders import FAMILY, changed, grant, ids, pod

DESCRIBING = {"slices", "specification", "explain"}
"""They have the publisher's thread, and its deadline."""
LENDING = {"lend"}
"""Called for families without a scheduler only."""
FUNCTIONS = {
    (part, field.name): field.type
    for part, kind in (("resources", Resources), ("node", NodeSide))
    for field in fields(kind)
    if field.type.startswith(("Callable", "Announce")) and field.name not in DESCRIBING
}


@pytest.mark.parametrize(("part", "name"), FUNCTIONS)
def test_every_function_is_guarded_where_it_is_called(part, name):
    ran_on = []
    with closing(BoundedCalls("odd", timeout=5)) as calls:
        noting = changed(ODD_FAMILY, **{name: lambda *_asked: ran_on.append(threading.current_thread())})
        function = getattr(getattr(guard_family(noting, Guard(calls, VendorErrors("odd"))), part), name)

        with pytest.raises(VendorError, match="None is no"):
            function(Grant(uuid="a", device_type="ODD", memory=1, cores=1), None)

    assert ran_on == [threading.current_thread()]


@pytest.mark.parametrize(
    "name", [name for (_, name), kind in FUNCTIONS.items() if "HostFiles" in kind and name not in LENDING]
)
async def test_what_is_handed_the_host_is_called_on_the_vendors_thread_when_a_container_is_served(name, node):
    ran_on = []

    def noting(*asked):
        ran_on.append(threading.current_thread().name)
        return getattr(FAMILY.node, name)(*asked)

    delivery = Delivery(ways=(Way.DEVICE_SPECS,), kind="toy.io/card")
    node.use(guard_family(changed(FAMILY, delivery=delivery, **{name: noting}), node.guard))
    node.cluster.add(pod("a", pieces=[[grant(0)]]))

    await node.allocator.preparation.require()
    await node.allocator.allocate(ids((0, 0)))

    assert set(ran_on) == {"node-test"}
