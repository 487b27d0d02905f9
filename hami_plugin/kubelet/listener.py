"""One gRPC server on one Unix socket: put in place whole, closed to everybody but root, checked, taken away.

The socket is bound in a private directory and then renamed to its place. So nobody meets it half made or with the
wrong mode, no process-wide umask is touched, and gRPC, which removes the path it bound when it stops, cannot remove
the socket of somebody who came after us.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import grpc

from hami_plugin.errors import HamiError
from hami_plugin.kubelet.channels import accepts, address, dial, words
from hami_plugin.kubelet.identity import Identity
from hami_plugin.kubelet.servicer import DevicePluginServicer
from hami_plugin.kubelet.v1beta1 import deviceplugin_pb2 as pb
from hami_plugin.kubelet.v1beta1 import deviceplugin_pb2_grpc as rpc

_OPTIONS = (("grpc.max_receive_message_length", 8 << 20),)


class ListenError(HamiError):
    """Our own socket cannot be served."""


class Listener:
    """A served socket. Make it with ``open``."""

    def __init__(self, path: Path, server: grpc.aio.Server, servicer: DevicePluginServicer, identity: Identity) -> None:
        self.path = path
        self.servicer = servicer
        self._server = server
        self._identity = identity

    @classmethod
    async def open(cls, path: Path, servicer: DevicePluginServicer, *, timeout: float = 5.0) -> Listener:  # noqa: ASYNC109  # of the self-check
        """Serve on ``path``, over whatever stale file is there, and check it by a call. ``ListenError`` otherwise."""
        if await accepts(path):
            raise ListenError(
                f"another process serves {path}", hint="stop it; a second hami-plugin on one node cannot work"
            )
        server = grpc.aio.server(options=_OPTIONS)
        rpc.add_DevicePluginServicer_to_server(servicer, server)
        try:
            identity = await _bind(server, path)
            await _check(path, timeout)
        except BaseException:  # also when the wait is cancelled: no server may be left behind
            await server.stop(None)
            raise
        return cls(path, server, servicer, identity)

    @property
    def intact(self) -> bool:
        """Whether the path still leads to our socket."""
        return Identity.of(self.path) == self._identity

    async def close(self, *, grace: float = 0.3) -> None:
        """End the streams, give other calls ``grace`` seconds, and remove the socket if it is still ours."""
        if self.intact:
            with suppress(OSError):
                self.path.unlink()
        self.servicer.end_streams()
        await self._server.stop(grace)


async def _bind(server: grpc.aio.Server, path: Path) -> Identity:
    cradle = path.with_name(f".{path.stem}")
    bound = cradle / "s"
    try:
        cradle.mkdir(mode=0o700, exist_ok=True)
        server.add_insecure_port(address(bound))
        await server.start()
        bound.chmod(0o600)
        bound.rename(path)
        cradle.rmdir()
    except (OSError, RuntimeError) as error:  # RuntimeError is gRPC's word for a bind that failed
        raise ListenError(
            f"cannot serve {path}: {error}",
            hint="mount the kubelet's device-plugins directory read-write into this container",
        ) from error
    identity = Identity.of(path)
    if identity is None:
        raise ListenError(f"{path} went away while it was made", hint="the kubelet is starting; trying again")
    return identity


async def _check(path: Path, timeout: float) -> None:  # noqa: ASYNC109  # handed to gRPC
    async with dial(path) as channel:
        try:
            await rpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise ListenError(f"{path} does not answer our own call: {words(error)}") from error
