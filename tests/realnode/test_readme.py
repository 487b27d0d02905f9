"""Case m: the README's commands on a cluster, to the last one."""

import pytest

from tests.realnode import readme
from tests.realnode.ground import NAME
from tests.realnode.servers import until

pytestmark = pytest.mark.case("m", "the README's three commands on a cluster")
POD = "first-share"


def test_the_pod_of_the_readmes_last_command_is_held_to_its_share_and_succeeds(daemon, scheduler, pods, node):
    *_, apply = readme.commands(NAME)
    file = apply[-1]
    node.enclosure.write(f"/{file}", (readme.ROOT / file).read_bytes())

    node.kubectl(*apply[1:])
    pods.names.append(POD)

    until(lambda: pods.phase(POD) == "Succeeded", f"the success of {POD}: {pods.told(POD)}", 60)
    said = node.api.log("default", POD, "main")
    assert said.startswith("3000m of GPU-"), said
