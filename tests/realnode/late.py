"""A pod between its Allocate and its start: it waits for an image, which comes when the test wants it."""

from dataclasses import dataclass

from tests.realnode.api import Object
from tests.realnode.asked import manifest
from tests.realnode.pods import Pods
from tests.realnode.servers import until
from tests.runtimes import image

NAME = "localhost/late:1"
CTR = ("ctr", "--namespace=k8s.io", "images")


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """The pod's ``name``."""

    name: str
    pods: Pods

    def arrive(self) -> None:
        """The image is there now."""
        self.pods.node.run(*CTR, "tag", image.PLAIN, NAME)


def late(pods: Pods, name: str, container: Object) -> Late:
    """Have a pod scheduled that lacks its image, and wait until its devices are answered for."""
    pods.node.enclosure.run(*CTR, "rm", NAME, deadline_s=20)  # of a former test
    pods.submit(manifest(name, {**container, "image": NAME}))
    until(lambda: any("ErrImageNeverPull" in line for line in pods.told(name)), "the missing image", 40)
    pods.await_settled(name)
    return Late(name=name, pods=pods)
