"""One gRPC server on one Unix socket: put in place whole, closed to everybody but root, checked, taken away.

The socket is bound in a private directory and then renamed to its place. So nobody meets it half made or with the
wrong mode, no process-wide umask is touched, and gRPC, which removes the path it bound when it stops, cannot remove
the socket of somebody who came after us.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR

import grpc

from hami_plugin.errors import HamiError
from hami_plugin.kubelet.api import deviceplugin_pb2 as pb
from hami_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from hami_plugin.kubelet.servicer import DevicePluginServicer

MAX_PATH = 107
"""Bytes in a socket's path: Linux has room for 108, with the closing zero."""

_CHANNEL_OPTIONS: Sequence[tuple[str, int | str]] = (
    # Channels to one path would otherwise share a connection, and with it the back-off after a failure.
    ("grpc.use_local_subchannel_pool", 1),
    # Go servers refuse a path as the authority of a request.
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", 16 << 20),
)


def dial(socket: Path) -> grpc.aio.Channel:
    """A channel of its own to ``socket``. It connects with the first call; close it after use."""
    return grpc.aio.insecure_channel(address(socket), options=_CHANNEL_OPTIONS)


def address(socket: Path) -> str:
    """The name of a socket in gRPC. ``HamiError`` when the path is longer than Linux allows."""
    length = len(bytes(socket))
    if length > MAX_PATH:
        raise HamiError(
            f"socket path {socket} is {length} bytes long, and Linux allows {MAX_PATH}",
            hint="mount the directory at a shorter path, and set kubeletDir to it",
        )
    return f"unix://{socket.absolute()}"


async def accepts(socket: Path, *, within: float = 1.0) -> bool:
    """Whether some process accepts connections on ``socket``. Nothing is sent.

    One that has no time yet counts too: only the kernel's refusal says that nobody listens.
    """
    with suppress(OSError):
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                _, writer = await asyncio.open_unix_connection(str(socket))
                writer.close()
                await writer.wait_closed()
        return True
    return False


def status_text(error: grpc.aio.AioRpcError) -> str:
    """Status and text of a failed call, short enough for a log line."""
    return f"{error.code().name}: {(error.details() or 'no details')[:500]}"


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Which file a path leads to. The time is part of it since a new file often gets a freed inode number."""

    device: int
    inode: int
    modified_ns: int = 0

    @classmethod
    def of(cls, path: Path) -> FileIdentity | None:
        """None when there is nothing, or nothing that we may look at."""
        found = _status(path)
        return cls(found.st_dev, found.st_ino, found.st_mtime_ns) if found else None

    @classmethod
    def of_directory(cls, path: Path) -> FileIdentity | None:
        """As ``of``, without the time, which changes with every entry."""
        found = _status(path)
        return cls(found.st_dev, found.st_ino) if found and S_ISDIR(found.st_mode) else None


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


_OPTIONS = (("grpc.max_receive_message_length", 8 << 20),)


class ListenError(HamiError):
    """Our own socket cannot be served."""


class Listener:
    """A served socket. Make it with ``open``."""

    def __init__(
        self, path: Path, server: grpc.aio.Server, servicer: DevicePluginServicer, identity: FileIdentity
    ) -> None:
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
        return FileIdentity.of(self.path) == self._identity

    async def close(self, *, grace: float = 0.3) -> None:
        """End the streams, give other calls ``grace`` seconds, and remove the socket if it is still ours."""
        if self.intact:
            with suppress(OSError):
                self.path.unlink()
        self.servicer.end_streams()
        await self._server.stop(grace)


async def _bind(server: grpc.aio.Server, path: Path) -> FileIdentity:
    cradle = path.with_name(f".{path.stem}")
    hint = "mount the kubelet's device-plugins directory read-write into this container"
    try:
        cradle.mkdir(mode=0o700, exist_ok=True)
        identity = await put_in_place(server, cradle / "s", path, hint=hint)
        cradle.rmdir()
    except OSError as error:
        raise ListenError(f"cannot serve {path}: {error}", hint=hint) from error
    return identity


async def put_in_place(server: grpc.aio.Server, bound: Path, path: Path, *, hint: str) -> FileIdentity:
    """Start the server on ``bound``, close it to everybody but root, and rename it to ``path``. ``ListenError``.

    gRPC removes the name that it has bound when it stops. ``hint`` is for a directory that cannot be written.
    """
    try:
        server.add_insecure_port(address(bound))
        await server.start()
        _close_to_others(bound).rename(path)
    except (OSError, RuntimeError) as error:  # gRPC raises RuntimeError when a bind fails
        raise ListenError(f"cannot serve {path}: {error}", hint=hint) from error
    identity = FileIdentity.of(path)
    if identity is None:
        raise ListenError(f"{path} went away while it was made", hint="the kubelet is starting; trying again")
    return identity


def _close_to_others(path: Path) -> Path:
    path.chmod(0o600)
    return path


async def _check(path: Path, timeout: float) -> None:  # noqa: ASYNC109  # handed to gRPC
    async with dial(path) as channel:
        try:
            await rpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise ListenError(f"{path} does not answer our own call: {status_text(error)}") from error
