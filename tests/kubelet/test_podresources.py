import asyncio

import grpc
import pytest

from hami_plugin.errors import HamiError
from hami_plugin.kubelet.api import podresources_pb2 as pb
from hami_plugin.kubelet.api import podresources_pb2_grpc as rpc
from hami_plugin.kubelet.holders import PodResourcesClient, holders_of
from hami_plugin.model.ports import Holder

RESOURCE = "example.com/gpu"


def container(name, *entries):
    return pb.ContainerResources(
        name=name, devices=[pb.ContainerDevices(resource_name=r, device_ids=ids) for r, ids in entries]
    )


class Lister(rpc.PodResourcesListerServicer):
    """Answers with one pod, after the refusals that it was given."""

    def __init__(self, *refusals):
        self.refusals = list(refusals)

    async def List(self, request, context):  # noqa: N802  # gRPC's name
        if self.refusals:
            await context.abort(self.refusals.pop(0), "not now")
        return pb.ListPodResourcesResponse(
            pod_resources=[pb.PodResources(name="p", namespace="n", containers=[container("c", (RESOURCE, ["a"]))])]
        )


@pytest.fixture
async def serve(site):
    servers = []

    async def start(lister):
        site.pod_resources.parent.mkdir(exist_ok=True)
        server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(lister, server)
        server.add_insecure_port(f"unix://{site.pod_resources}")
        await server.start()
        servers.append(server)
        return PodResourcesClient(site.pod_resources, timeout=30)

    yield start
    for server in servers:
        await server.stop(None)


def test_the_entries_of_a_container_are_one_holder_and_other_resources_do_not_count():
    response = pb.ListPodResourcesResponse(
        pod_resources=[
            pb.PodResources(
                name="p",
                namespace="n",
                containers=[
                    container("both", (RESOURCE, ["a"]), ("example.com/nic", ["x"]), (RESOURCE, ["b"])),
                    container("none", ("example.com/nic", ["y"])),
                    container("empty"),
                ],
            )
        ]
    )

    assert holders_of(response, RESOURCE) == (
        Holder(namespace="n", pod="p", container="both", ids=frozenset({"a", "b"})),
    )


async def test_it_asks_the_kubelet(serve):
    client = await serve(Lister())

    assert await client.holders(RESOURCE) == (Holder(namespace="n", pod="p", container="c", ids=frozenset({"a"})),)
    assert await client.holders("example.com/other") == ()


async def test_one_question_tells_of_all_resources(serve):
    client = await serve(Lister())

    assert await client.everything() == {RESOURCE: await client.holders(RESOURCE)}


async def test_a_kubelet_that_is_busy_for_a_moment_is_asked_again(serve):
    client = await serve(Lister(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE))

    assert len(await client.holders(RESOURCE)) == 1


async def test_a_refusal_is_an_error_with_its_words(serve):
    client = await serve(Lister(grpc.StatusCode.PERMISSION_DENIED))

    with pytest.raises(HamiError, match="PERMISSION_DENIED: not now"):
        await client.holders(RESOURCE)


async def test_a_missing_socket_says_what_to_mount(site):
    with pytest.raises(HamiError, match=r"no such socket; mount .* or set podResourcesSocket"):
        await PodResourcesClient(site.pod_resources).holders(RESOURCE)


async def test_a_kubelet_that_does_not_answer_has_a_deadline(site):
    silent = asyncio.Event()

    async def hold(reader, writer):
        await silent.wait()
        writer.close()

    site.pod_resources.parent.mkdir()
    server = await asyncio.start_unix_server(hold, site.pod_resources)

    with pytest.raises(HamiError, match=r"no answer within 0\.3 s|DEADLINE_EXCEEDED"):
        await PodResourcesClient(site.pod_resources, timeout=0.3).holders(RESOURCE)

    silent.set()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("answer", ["no message", "too long", "nothing"])
async def test_an_answer_that_nobody_can_read_is_an_error_and_none_is_an_empty_account(site, answer):
    async def said(_request, _context):
        return {"no message": b"\xff\xff\xff", "too long": b"\0" * (5 << 20), "nothing": b""}[answer]

    site.pod_resources.parent.mkdir(exist_ok=True)
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(said)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})])
    server.add_insecure_port(f"unix://{site.pod_resources}")
    await server.start()
    client = PodResourcesClient(site.pod_resources, timeout=30.0 if answer == "nothing" else 0.5)

    try:
        if answer == "nothing":
            assert await client.everything() == {}
        else:
            with pytest.raises(HamiError, match="no list of PodResources"):
                await client.everything()
    finally:
        await server.stop(None)
