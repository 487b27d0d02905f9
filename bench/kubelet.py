"""The kubelet's timed calls: the daemon's Allocate, and a bare echo as the baseline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import grpc

from bench.echo import METHOD
from bench.processes import running
from bench.testbed import Node
from hami_plugin.kubelet.api import deviceplugin_pb2 as pb
from hami_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from hami_plugin.model.device import physical_id, replica_id

DEADLINE_S = 30.0
# Channels that share a connection would share its fate; the authority is what the kubelet's client sends.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


class Calls:
    """Blocking calls on one connection. Nothing else of this process should run beside a call that is timed."""

    def __init__(self, socket: Path, stack: ExitStack) -> None:
        self._channel = stack.enter_context(grpc.insecure_channel(f"unix://{socket.absolute()}", options=_OPTIONS))
        self._stub = rpc.DevicePluginStub(self._channel)
        self._echo = self._channel.unary_unary(
            METHOD,
            request_serializer=pb.AllocateRequest.SerializeToString,
            response_deserializer=pb.AllocateResponse.FromString,
        )

    def prefer(self, available: Sequence[str], size: int) -> tuple[list[str], float]:
        """The daemon's choice, and the seconds that it took. It waits until a pod that asks for ``size`` is known."""
        container = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
        request = pb.PreferredAllocationRequest(container_requests=[container])
        start = time.perf_counter()
        answer = self._stub.GetPreferredAllocation(request, timeout=DEADLINE_S)
        seconds = time.perf_counter() - start
        return list(answer.container_responses[0].deviceIDs), seconds

    def allocate(self, ids: Sequence[str]) -> tuple[pb.AllocateResponse, float]:
        """The answer, and the seconds from the request as an object to the answer as an object."""
        request = _request(ids)
        start = time.perf_counter()
        answer = self._stub.Allocate(request, timeout=DEADLINE_S)
        return answer, time.perf_counter() - start

    def echo(self, ids: Sequence[str]) -> float:
        """The seconds of a call of the same size to the echo server."""
        request = _request(ids)
        start = time.perf_counter()
        self._echo(request, timeout=DEADLINE_S)
        return time.perf_counter() - start


class Shares:
    """Which replica ids are free."""

    def __init__(self, uuids: Sequence[str], node: Node) -> None:
        self._free = {uuid: [replica_id(uuid, number) for number in reversed(range(node.split))] for uuid in uuids}

    @property
    def free(self) -> list[str]:
        return [replica for replicas in self._free.values() for replica in replicas]

    def take(self, uuid: str) -> str:
        """Any share of this device."""
        return self._free[uuid].pop()

    def give_back(self, replicas: Sequence[str]) -> None:
        for replica in replicas:
            self._free[physical_id(replica)].append(replica)

    def claim(self, replicas: Sequence[str]) -> None:
        for replica in replicas:
            self._free[physical_id(replica)].remove(replica)


@asynccontextmanager
async def echoing(directory: Path, answer: pb.AllocateResponse, stack: ExitStack) -> AsyncIterator[Calls]:
    """A bare echo in its own process, which returns the daemon's answer."""
    socket, sample = directory / "echo.sock", directory / "answer"
    sample.write_bytes(answer.SerializeToString())
    async with running("-m", "bench.echo", socket, sample):
        yield await asyncio.to_thread(Calls, socket, stack)


def _request(ids: Sequence[str]) -> pb.AllocateRequest:
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
