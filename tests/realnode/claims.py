"""ResourceClaims and their pods on a real node: what is published, allocated and prepared, and what is left."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import grpc
import yaml

from hami_plugin.kubelet.api.podresources_pb2 import ListPodResourcesRequest
from hami_plugin.kubelet.api.podresources_pb2_grpc import PodResourcesListerStub
from tests.realnode.api import ApiError, Object
from tests.realnode.asked import NAMESPACE, container, manifest
from tests.realnode.node import Node
from tests.realnode.pods import Pods
from tests.realnode.servers import until
from tests.realnode.shares import SOCKET

DRIVER = "nvidia.hami.io"
GROUP = "/apis/resource.k8s.io/v1"
OWN = f"{GROUP}/namespaces/{NAMESPACE}"
SPECS = "/run/cdi"
JOURNAL = "/var/lib/hami-plugin/claims"
STOCK = "default-scheduler"
CLAIM = "gpu"
"""What pods call their claim, and the claim its request."""
FREE_S, BACK_S = 40, 90
TOGETHER = ("cannot allocate all claims", "FailedScheduling")


def request(name: str = CLAIM, *, driver: str = DRIVER, uuid: str = "", count: int = 1, **capacity: str) -> Object:
    """A request for so much of a device, of the one with this ``uuid`` where one is given."""
    asked: Object = {"deviceClassName": driver, "count": count}
    if capacity:
        asked["capacity"] = {"requests": capacity}
    if uuid:
        asked["selectors"] = [{"cel": {"expression": f'device.attributes["{driver}"].uuid == "{uuid}"'}}]
    return {"name": name, "exactly": asked}


def receiving(one: Object | None = None, *requests: str) -> Object:
    """A container with these requests of the pod's claim; with all of them where none is named."""
    listed = [{"name": CLAIM, "request": name} for name in requests] or [{"name": CLAIM}]
    return {**(one or container()), "resources": {"claims": listed}}


@dataclass(slots=True, kw_only=True)
class Claims:
    """The claims of one test, and the pods that have them. What is made here is deleted at the end."""

    node: Node
    pods: Pods
    made: list[str] = field(default_factory=list)

    def claim(self, name: str, *requests: Object) -> str:
        """A claim that its user makes and deletes."""
        return self._make("resourceclaims", "ResourceClaim", name, _spec(requests))

    def template(self, name: str, *requests: Object) -> str:
        """Of which each pod gets a claim of its own."""
        return self._make("resourceclaimtemplates", "ResourceClaimTemplate", name, {"spec": _spec(requests)})

    def _make(self, kind: str, title: str, name: str, spec: Object) -> str:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": title, "metadata": {"name": name}, "spec": spec}
        self.node.api.call("POST", f"{OWN}/{kind}", body)
        self.made.append(f"{kind}/{name}")
        return name

    def asked(self, name: str, *requests: Object, claim: str = "", containers: Sequence[Object] = (), **spec) -> Object:
        """A pod with a claim for these ``requests`` from a template of its name, or with a ``claim`` that is there."""
        how = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": self.template(name, *requests)}
        settings = {
            "schedulerName": STOCK,
            "resourceClaims": [{"name": CLAIM, **how}],
            "terminationGracePeriodSeconds": 1,  # with none a plain deletion is one by force
            **spec,
        }
        return manifest(name, *(containers or (receiving(),)), **settings)

    def create(self, name: str, *requests: Object, **how) -> str:
        """As ``asked``, without waiting for it."""
        return self.pods.create(self.asked(name, *requests, **how))

    def run(self, name: str, *requests: Object, **how) -> str:
        """As ``asked``, and wait until it runs."""
        self.create(name, *requests, **how)
        self.pods.await_running(name)
        return name

    def of(self, pod: str) -> Object:
        """The claim of a pod."""
        status = self.pods.get(pod)["status"]
        made = {one["name"]: one.get("resourceClaimName", "") for one in status.get("resourceClaimStatuses", ())}
        (own,) = self.pods.get(pod)["spec"]["resourceClaims"]
        return self.get(made.get(own["name"]) or own["resourceClaimName"])

    def get(self, claim: str) -> Object:
        return self.node.api.call("GET", f"{OWN}/resourceclaims/{claim}")

    def find(self, claim: str) -> Object | None:
        try:
            return self.get(claim)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def results(self, pod: str) -> list[Object]:
        """What the scheduler has allocated to a pod."""
        return list(self.of(pod)["status"]["allocation"]["devices"]["results"])

    def slices(self, driver: str = DRIVER) -> list[Object]:
        """Of this node, as they are at the API server."""
        found = self.node.api.call("GET", f"{GROUP}/resourceslices")["items"]
        own = [one for one in found if (one["spec"]["driver"], one["spec"].get("nodeName")) == (driver, self.node.name)]
        return sorted(own, key=lambda one: one["metadata"]["name"])

    def devices(self, driver: str = DRIVER) -> dict[str, Object]:
        """What is published, by its name."""
        return {device["name"]: device for one in self.slices(driver) for device in one["spec"].get("devices") or ()}

    def uuids(self, driver: str = DRIVER) -> list[str]:
        return [device["attributes"]["uuid"]["string"] for device in self.devices(driver).values()]

    def specs(self) -> set[str]:
        """The claims' CDI specs."""
        return {path.name for path in self.node.path(SPECS).glob("hami-claim_*")}

    def prepared(self) -> dict[str, str]:
        """What the daemon's journal has, by the claim's UID: its name. The first claim makes the file."""
        path, kept = self.node.path(JOURNAL), dict[str, str]()
        for entry in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
            if entry["op"] == "claim":
                kept[entry["uid"]] = entry["name"]
            else:
                kept.pop(entry["uid"], None)
        return kept

    def await_waiting(self, *pods: str) -> None:
        """Until the scheduler says that no device has enough for them."""

        def wait() -> bool:
            return all(any(all(word in line for word in TOGETHER) for line in self.pods.told(name)) for name in pods)

        until(wait, f"the scheduler's word about {', '.join(pods)}", FREE_S)

    def await_free(self) -> float:
        """Until nothing is left of any claim: no allocation, no spec, nothing in the journal."""

        def free() -> bool:
            allocated = [one for one in self._all("resourceclaims") if one.get("status", {}).get("allocation")]
            return not (allocated or self.specs() or self.prepared())

        try:
            return until(free, "the end of all claims", FREE_S)
        except TimeoutError as error:
            left = [(one["metadata"]["name"], one.get("status")) for one in self._all("resourceclaims")]
            raise TimeoutError(f"{error}: {left} {self.specs()} {self.prepared()}"[:3000]) from error

    def _all(self, kind: str) -> list[Object]:
        return list(self.node.api.call("GET", f"{OWN}/{kind}")["items"])

    def end(self, *names: str) -> None:
        """Delete pods as their users do, at once, and wait until they are gone."""
        ending(self.node, names)
        self.pods.names[:] = [name for name in self.pods.names if name not in names]

    def clear(self) -> None:
        self.end(*dict.fromkeys(self.pods.names))
        for one in self.made:
            try:
                self.node.api.call("DELETE", f"{OWN}/{one}")
            except ApiError as error:
                if error.status != 404:
                    raise
        self.made.clear()
        self.await_free()

    def nodes(self, uuid: str) -> tuple[set[str], set[str]]:
        """Of the device with this UUID, and of its vendor's other devices, by the CDI specs."""
        for path in self.node.path(SPECS).glob("hami-plugin_*"):
            spec = yaml.load(path.read_text(), yaml.CSafeLoader)
            devices = {one["name"]: _nodes(one) for one in spec["devices"] if one["name"] != "all"}
            if uuid in devices:
                own = devices[uuid] | _nodes(spec)
                return own, set[str]().union(*devices.values()) - own
        raise LookupError(uuid)

    def told_by_kubelet(self, pod: str) -> dict[str, set[tuple[str, str]]]:
        """The devices of each container, and the share of each, by the kubelet's PodResources."""
        path = self.node.path(SOCKET)
        with grpc.insecure_channel(f"unix:{path}", options=[("grpc.enable_http_proxy", 0)]) as channel:
            answer = PodResourcesListerStub(channel).List(ListPodResourcesRequest(), timeout=20)
        return {
            one.name: {
                (each.device_name, each.share_id) for claim in one.dynamic_resources for each in claim.claim_resources
            }
            for found in answer.pod_resources
            if found.name == pod
            for one in found.containers
        }


def ending(node: Node, names: Iterable[str]) -> None:
    """Delete pods, each within its own grace, and wait until they are gone."""
    for name in names:
        if node.api.find_pod(NAMESPACE, name):
            node.api.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
    for name in names:
        until(_gone(node, name), f"the end of pod {name}", FREE_S)


def _nodes(part: Object) -> set[str]:
    return {one["path"] for one in part.get("containerEdits", {}).get("deviceNodes", ())}


def _gone(node: Node, name: str) -> Callable[[], bool]:
    return lambda: node.api.find_pod(NAMESPACE, name) is None


def _spec(requests: Sequence[Object]) -> Object:
    return {"devices": {"requests": list(requests or (request(),))}}
