"""Calls over Unix sockets: how a gRPC channel to the kubelet, or to ourselves, is set up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc

from hami_plugin.errors import HamiError

MAX_PATH = 107
"""Bytes in a socket's path: Linux has room for 108, with the closing zero."""

_OPTIONS: Sequence[tuple[str, int | str]] = (
    # Channels to one path would otherwise share a connection, and with it the back-off after a failure.
    ("grpc.use_local_subchannel_pool", 1),
    # Go servers refuse a path as the authority of a request.
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", 16 << 20),
)


def dial(socket: Path) -> grpc.aio.Channel:
    """A channel of its own to ``socket``. It connects with the first call; close it after use."""
    return grpc.aio.insecure_channel(address(socket), options=_OPTIONS)


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
    """Whether some process accepts connections on ``socket``. Nothing is sent."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(within):
            _, writer = await asyncio.open_unix_connection(str(socket))
            writer.close()
            await writer.wait_closed()
            return True
    return False


def words(error: grpc.aio.AioRpcError) -> str:
    """Status and text of a failed call, short enough for a log line."""
    return f"{error.code().name}: {(error.details() or 'no details')[:500]}"
