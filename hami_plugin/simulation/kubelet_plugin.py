"""A kubelet's connection to one device plugin: its options, its stream of lists, and the calls at admission."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import grpc

from hami_plugin.aio import Watched, cancelled
from hami_plugin.kubelet.messages import answer_of, offers_of
from hami_plugin.kubelet.v1beta1 import deviceplugin_pb2 as pb
from hami_plugin.kubelet.v1beta1 import deviceplugin_pb2_grpc as rpc
from hami_plugin.model.delivery import Answer
from hami_plugin.model.ports import Offer
from hami_plugin.simulation.kubelet_ledger import AdmissionError

# The kubelet leaves gRPC's limit of 4 MiB for a received message as it is, and so do we.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


class PluginConnection:
    """``resource`` as served on ``socket``. ``changed`` is called after each list and at the stream's end.

    Clear ``reading`` to be a slow reader; nothing is read until it is set again.
    """

    def __init__(self, resource: str, socket: Path, changed: Callable[[PluginConnection], None]) -> None:
        self.resource = resource
        self.socket = socket
        self.offers: Watched[tuple[Offer, ...]] = Watched(())
        self.lists = 0
        self.ended = ""
        self.reading = asyncio.Event()
        self.reading.set()
        self.pre_start_required = False
        self.preferred_available = False
        self._changed = changed
        self._channel = grpc.aio.insecure_channel(f"unix://{socket.absolute()}", options=_OPTIONS)
        self._stub = rpc.DevicePluginStub(self._channel)
        self._stream: asyncio.Task[None] | None = None

    async def connect(self, *, within: float) -> None:
        """Dial and ask for options; ``grpc.aio.AioRpcError`` after ``within`` seconds. Then listen to lists."""
        options = await self._stub.GetDevicePluginOptions(pb.Empty(), timeout=within, wait_for_ready=True)
        self.pre_start_required = options.pre_start_required
        self.preferred_available = options.get_preferred_allocation_available
        self._stream = asyncio.create_task(self._listen(), name=f"kubelet listens to {self.resource}")

    async def close(self) -> None:
        """End the stream, as a kubelet that stops or has a newer registration does."""
        if self._stream:
            await cancelled(self._stream)
        await self._channel.close(None)

    async def preferred(self, available: Iterable[str], must: Iterable[str], size: int) -> frozenset[str]:
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        answer = await self._stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[request]))
        return frozenset(device for container in answer.container_responses for device in container.deviceIDs)

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """Without a deadline, as the kubelet does it."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        answers = (await self._stub.Allocate(request)).container_responses
        if not answers:
            raise AdmissionError("no containers return in allocation response")
        return answer_of(answers[0])

    async def pre_start(self, ids: Sequence[str], *, within: float) -> None:
        await self._stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids), timeout=within)

    async def _listen(self) -> None:
        try:
            call = self._stub.ListAndWatch(pb.Empty())
            while True:
                await self.reading.wait()
                message = await call.read()
                if not isinstance(message, pb.ListAndWatchResponse):
                    self.ended = "end of stream"
                    return
                self.lists += 1
                self.offers.set(offers_of(message))
                self._changed(self)
        except grpc.aio.AioRpcError as error:
            self.ended = f"{error.code().name}: {error.details()}"
        except asyncio.CancelledError:
            self.ended = "closed by the kubelet"
            raise
        finally:
            self.offers.close()
            self._changed(self)
