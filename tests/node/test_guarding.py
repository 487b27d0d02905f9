"""Where a vendor's functions run follows from what the contract hands them."""

import threading
from contextlib import closing
from dataclasses import fields, replace

import pytest

from hami_plugin.errors import VendorMistakeError
from hami_plugin.host.bounded import BoundedCalls
from hami_plugin.model.placement import Grant
from hami_plugin.node.guarding import Guard, guarded
from hami_plugin.node.mistakes import Mistakes
from hami_plugin.vendor import Family
from tests.support.beside import ODD_FAMILY

DESCRIBING = {"slices", "specification", "explain"}
"""They have the publisher's thread, and its deadline."""
FUNCTIONS = {
    field.name: field.type
    for field in fields(Family)
    if field.type.startswith(("Callable", "Announce")) and field.name not in DESCRIBING
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_handed_the_host_has_a_thread_and_a_deadline_and_all_else_runs_at_once(name):
    ran_on = []
    with closing(BoundedCalls("odd", patience=5)) as calls:
        noting = replace(ODD_FAMILY, **{name: lambda *_asked: ran_on.append(threading.current_thread())})
        function = getattr(guarded(noting, Guard(calls, Mistakes("odd"))), name)

        with pytest.raises(VendorMistakeError, match="None is no"):
            function(Grant(uuid="a", word="ODD", memory=1, cores=1), None)

    assert len(ran_on) == 1
    assert (ran_on[0] is not threading.current_thread()) == ("HostFiles" in FUNCTIONS[name])
