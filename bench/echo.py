"""The baseline: a bare gRPC server on a Unix socket that answers every call with the same bytes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc

METHOD = "/bench.Echo/Echo"


def echo_server(socket: Path, answer: bytes) -> grpc.aio.Server:
    """A server that has not been started."""

    async def echo(_request: bytes, _context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return answer

    service, method = METHOD.strip("/").split("/")
    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler(service, {method: grpc.unary_unary_rpc_method_handler(echo)})
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix://{socket}")
    return server


async def serve(socket: Path, answer: bytes) -> None:
    """Serve until the process is terminated. A line on standard output says that it is ready."""
    server = echo_server(socket, answer)
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()))
