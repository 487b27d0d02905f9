"""A driver's two sockets against a simulated kubelet: registered, asked, lost and found again."""

import asyncio
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from hami_plugin.dra.claims import ClaimError
from hami_plugin.dra.prepared import Prepared, PreparedDevice
from hami_plugin.dra.preparing import ClaimRef
from hami_plugin.kubelet.api import dra_health_v1_pb2 as health_v1
from hami_plugin.kubelet.api import dra_health_v1_pb2_grpc as health_v1_rpc
from hami_plugin.kubelet.api import dra_health_v1alpha1_pb2 as health_v1alpha1
from hami_plugin.kubelet.api import dra_health_v1alpha1_pb2_grpc as health_v1alpha1_rpc
from hami_plugin.kubelet.api import dra_v1_pb2 as v1
from hami_plugin.kubelet.api import dra_v1_pb2_grpc as v1_rpc
from hami_plugin.kubelet.dra import DeviceHealth, DraEndpoint, DraTiming
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.process.concurrency import Backoff, Watched, cancel
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.dra import ClaimManager, PrepareError

DRIVER, NODE = "toy.hami.io", "n1"
QUICK = DraTiming(tick=0.01, asked=0.5, health=0.05, close=0.05, again=Backoff(first=0.01, cap=0.05))
CARD = PreparedDevice(request="gpu", pool=NODE, device="card-1", share_id="s1", cdi_devices=("hami.io/toy=1",))
WHOLE = PreparedDevice(request="gpu", pool=NODE, device="card-2", share_id="", cdi_devices=("hami.io/toy=2",))


class Claims:
    """Answers for every claim but those that are ``refused``."""

    def __init__(self):
        self.prepared, self.released, self.refused = [], [], {}

    async def prepare(self, refs):
        self.prepared += refs
        done = {
            ref.uid: Prepared(driver=DRIVER, uid=ref.uid, namespace=ref.namespace, name=ref.name, devices=(CARD, WHOLE))
            for ref in refs
        }
        return done | {uid: ClaimError(why) for uid, why in self.refused.items() if uid in done}

    async def unprepare(self, refs):
        self.released += refs
        return {ref.uid: ClaimError(self.refused[ref.uid]) for ref in refs if ref.uid in self.refused}


class Stage:
    def __init__(self, root, api, timing):
        self.root, self.api, self.claims = root, api, Claims()
        self.health = Watched((DeviceHealth(device="card-1", healthy=True),))
        self.kubelet = ClaimManager(root, api, NODE)
        self.endpoint = DraEndpoint(DRIVER, NODE, self.claims, self.health, root, generation=lambda: 7, timing=timing)

    @property
    def up(self):
        """Whether both sides know of each other."""
        return self.endpoint.registered and self.kubelet.registered(DRIVER)

    async def until(self, condition):
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110  # files and another task set no event
                await asyncio.sleep(0.01)

    def sockets(self):
        return sorted(path for path in (self.root / "plugins_registry").iterdir() if not path.name.startswith("."))

    def service(self):
        (path,) = [one for one in (self.root / "plugins" / DRIVER).iterdir() if not one.name.startswith(".")]
        return grpc.aio.insecure_channel(f"unix://{path}", options=(("grpc.default_authority", "localhost"),))

    def pod(self, name="a"):
        """A pod with an allocated claim."""
        claim = self.api.create_claim({"metadata": {"name": name, "namespace": "team"}, "spec": {}})
        results = [{"request": "gpu", "driver": DRIVER, "pool": NODE, "device": "card-1"}]
        reserved = [{"resource": "pods", "uid": name}]
        self.api.set_claim_status(
            "team", name, {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
        )
        main = ContainerView(name="main", claims=(("gpu", ""),))
        return PodView(uid=name, namespace="team", name=name, containers=(main,), claims={"gpu": name}), claim[
            "metadata"
        ]["uid"]


@asynccontextmanager
async def staged(root, timing=QUICK, **kubelet):
    async with SimulatedApiServer() as api:
        stage = Stage(root, api, timing)
        for name, value in kubelet.items():
            setattr(stage.kubelet, name, value)
        await stage.kubelet.start()
        task = asyncio.create_task(stage.endpoint.run())
        try:
            yield stage
        finally:
            await stage.endpoint.close()
            await cancel(task)
            await stage.kubelet.stop()


@pytest.fixture
def root():
    """Linux allows 107 bytes in a socket's path."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        yield Path(name)


@pytest.fixture
async def stage(root):
    async with staged(root) as one:
        await one.until(lambda: one.up)
        yield one


@pytest.mark.parametrize(("service", "shares"), [("v1.DRAPlugin", ["s1", None]), ("v1beta1.DRAPlugin", [None, None])])
async def test_each_version_of_the_kubelet_gets_the_answer_that_it_knows(root, service, shares):
    async with staged(root, services=(service,)) as stage:
        await stage.until(lambda: stage.up)
        pod, uid = stage.pod()

        await stage.kubelet.prepare(pod)
        devices = stage.kubelet.devices("a")
        names = stage.kubelet.cdi_devices(pod, "main")
        await stage.kubelet.unprepare(pod)

        assert stage.claims.prepared == stage.claims.released == [ClaimRef(uid=uid, namespace="team", name="a")]
        assert [(one.pool_name, one.device_name, list(one.request_names)) for one in devices] == [
            (NODE, "card-1", ["gpu"]),
            (NODE, "card-2", ["gpu"]),
        ]
        assert names == ("hami.io/toy=1", "hami.io/toy=2")
        has = [one.share_id if service.startswith("v1.") and one.HasField("share_id") else None for one in devices]
        assert has == shares


async def test_each_claim_of_a_call_has_an_answer_of_its_own(stage):
    stage.claims.refused["u2"] = "the card is away"
    async with stage.service() as channel:
        claims = [v1.Claim(uid=uid, namespace="team", name=uid) for uid in ("u1", "u2")]
        stub = v1_rpc.DRAPluginStub(channel)
        ready = await stub.NodePrepareResources(v1.NodePrepareResourcesRequest(claims=claims))
        released = await stub.NodeUnprepareResources(v1.NodeUnprepareResourcesRequest(claims=claims))
        empty = await stub.NodePrepareResources(v1.NodePrepareResourcesRequest())

    assert {uid: (len(one.devices), one.error) for uid, one in ready.claims.items()} == {
        "u1": (2, ""),
        "u2": (0, "the card is away"),
    }
    assert {uid: one.error for uid, one in released.claims.items()} == {"u1": "", "u2": "the card is away"}
    assert dict(empty.claims) == {}


async def test_a_kubelet_that_knows_no_version_says_so_in_the_drivers_problem(root):
    async with staged(root, timing=DraTiming(tick=0.01), services=()) as stage:
        await stage.until(lambda: "this kubelet knows none of" in stage.endpoint.problem)
        assert not stage.endpoint.registered


@pytest.mark.parametrize("lost", ["registration", "service"])
async def test_both_sockets_are_made_anew_under_other_names_when_one_is_lost(stage, lost):
    before = stage.sockets()
    folder = stage.root / ("plugins_registry" if lost == "registration" else f"plugins/{DRIVER}")
    for path in folder.iterdir():
        path.unlink()

    await stage.until(lambda: stage.sockets() and stage.sockets() != before and stage.up)
    pod, _uid = stage.pod()
    await stage.kubelet.prepare(pod)

    assert len(stage.sockets()) == 1


async def test_a_kubelet_that_never_asked_is_offered_another_name_and_its_absence_said(root):
    async with staged(root) as stage:
        await stage.until(lambda: stage.up)
        await stage.kubelet.stop()
        for path in stage.sockets():
            path.unlink()
        await stage.until(lambda: "no kubelet looks into" in stage.endpoint.problem)
        first = stage.sockets()
        await stage.until(lambda: stage.sockets() and stage.sockets() != first)

        await stage.kubelet.start()
        await stage.until(lambda: stage.up)


async def test_the_sockets_of_a_killed_life_are_removed_and_those_of_others_stay(root):
    registry = root / "plugins_registry"
    registry.mkdir()
    (registry / f"{DRIVER}-3.1-reg.sock").touch()
    (registry / "other.io-3.1-reg.sock").touch()
    async with staged(root) as stage:
        await stage.until(lambda: stage.up)
        names = [path.name for path in stage.sockets()]
        assert names[0] == "other.io-3.1-reg.sock"
        assert [name.startswith(f"{DRIVER}-7.") for name in names[1:]] == [True]


async def test_at_the_end_nothing_is_left_in_the_kubelets_directories(root):
    async with staged(root) as stage:
        await stage.until(lambda: stage.up)

    assert list((root / "plugins_registry").iterdir()) == []
    assert list((root / "plugins" / DRIVER).iterdir()) == []


async def test_a_driver_that_is_being_replaced_lets_the_kubelet_ask_again(stage):
    pod, _uid = stage.pod()
    stage.endpoint.leave()
    with pytest.raises(PrepareError, match="UNAVAILABLE"):
        await stage.kubelet.prepare(pod)
    stage.endpoint.stay()

    await stage.kubelet.prepare(pod)


@pytest.mark.parametrize(
    ("messages", "stub"),
    [
        (health_v1, health_v1_rpc.DRAResourceHealthStub),
        (health_v1alpha1, health_v1alpha1_rpc.DRAResourceHealthStub),
    ],
    ids=["v1", "v1alpha1"],
)
async def test_the_health_of_devices_is_told_at_each_change_and_again(stage, messages, stub):
    async with stage.service() as channel:
        call = stub(channel).NodeWatchResources(messages.NodeWatchResourcesRequest())
        first, again = await call.read(), await call.read()
        stage.health.set((DeviceHealth(device="card-1", healthy=False, message="XID 79 " * 500),))
        async with asyncio.timeout(30):
            while (last := (await call.read()).devices[0]).health != messages.UNHEALTHY:
                pass

    for response in (first, again):
        (one,) = response.devices
        assert (one.device.pool_name, one.device.device_name, one.health) == (NODE, "card-1", messages.HEALTHY)
        assert one.last_updated_time > 0
        assert one.health_check_timeout_seconds > 0
    assert last.message.startswith("XID 79")
    assert len(last.message) <= 1024


async def test_the_sockets_are_closed_to_everybody_but_root(stage):
    paths = [*stage.sockets(), *(stage.root / "plugins" / DRIVER).iterdir()]

    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}


async def test_a_path_that_is_too_long_for_a_socket_is_told(root):
    deep = root / ("d" * 80)
    deep.mkdir()
    async with staged(deep) as stage:
        await stage.until(lambda: "Linux allows 107" in stage.endpoint.problem)
