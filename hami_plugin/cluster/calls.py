"""One request to the API server: identity, deadline, Retry-After, and a report of how it went."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlencode

import aiohttp

from hami_plugin.errors import ClusterError
from hami_plugin.node.ports import Observer

from .bare import ApiClient
from .credentials import Credentials
from .pacing import Gate
from .reachability import Reachability
from .replies import Call, decoded, refused, retry_after, unanswered

UNREACHABLE = "unreachable"
_LOST = (aiohttp.ClientError, OSError, TimeoutError)

T = TypeVar("T")


class ApiCalls:
    """Sends calls. It repeats nothing, but for a token that was replaced at its source: a 401 changed nothing."""

    def __init__(self, credentials: Credentials, *, observer: Observer, deadline: float) -> None:
        # The library's default buffers up to 4 MiB for each watch; lines are split in `lines`, of any length.
        credentials.configuration.client_session_kwargs = {"read_bufsize": 2**16}
        self.health = Reachability()
        self._api = ApiClient(credentials.configuration)
        self._credentials = credentials
        self._observer = observer
        self._deadline = deadline
        self._gate = Gate()

    async def close(self) -> None:
        await self._api.close()

    async def json(self, call: Call) -> dict[str, Any]:
        """Send, and read the answer, all within the deadline. ``ClusterError`` for anything but success."""

        async def read(response: aiohttp.ClientResponse) -> dict[str, Any]:
            return decoded(call, await response.read())

        if call.writes:
            await self._pass_gate(call)
        return await self._ask(call, aiohttp.ClientTimeout(total=None), read)

    @asynccontextmanager
    async def stream(self, call: Call, *, silence: float) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Open a watch within the deadline and yield its bytes. Silence of more than ``silence`` seconds ends it."""

        async def opened(response: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
            return response

        response = await self._ask(call, aiohttp.ClientTimeout(total=None, sock_read=silence), opened)
        _probe_peer(response)
        try:
            async with aclosing(self._chunks(response)) as chunks:
                yield chunks
        except _LOST as error:
            failure = unanswered(call, f"the stream broke: {error or type(error).__name__}")
            self.health.failed(call, failure)
            raise failure from error
        finally:
            response.close()

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        async for chunk in response.content.iter_any():
            self.health.heard()
            yield chunk

    async def _ask(
        self,
        call: Call,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # how aiohttp is told; the deadline is ours
        read: Callable[[aiohttp.ClientResponse], Awaitable[T]],
    ) -> T:
        started, outcome = time.monotonic(), UNREACHABLE
        try:
            async with asyncio.timeout(self._deadline):
                response = await self._send(call, timeout)
                if not response.ok:
                    raise self._refused(call, response, await response.read())
                result = await read(response)
            outcome = str(response.status)
        except ClusterError as error:
            outcome = str(error.status) if error.status else UNREACHABLE
            self.health.failed(call, error)
            raise
        except _LOST as error:
            why = f"none within {self._deadline:g} s" if isinstance(error, TimeoutError) else error
            failure = unanswered(call, why or type(error).__name__)
            self.health.failed(call, failure)
            raise failure from error
        finally:
            self._observer.api_call(call.verb, call.kind, outcome, time.monotonic() - started)
        self.health.succeeded(call)
        return result

    async def _send(self, call: Call, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:  # noqa: ASYNC109  # as above
        identity = self._credentials.authorization()
        response = await self._exchange(call, identity, timeout)
        if response.status == HTTPStatus.UNAUTHORIZED:
            await self._credentials.renew()
            if (renewed := self._credentials.authorization()) != identity:
                response.close()
                response = await self._exchange(call, renewed, timeout)
        return response

    async def _exchange(self, call: Call, identity: str, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:  # noqa: ASYNC109  # as above
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/merge-patch+json" if call.verb == "patch" else "application/json",
            "User-Agent": "hami-plugin",
        }
        if identity:
            headers["Authorization"] = identity
        query = f"?{urlencode(call.query)}" if call.query else ""
        reply = await self._api.call_api(
            call.method,
            f"{self._credentials.configuration.host}{call.path}{query}",
            header_params=headers,
            body=call.body,
            _request_timeout=timeout,
        )
        response: aiohttp.ClientResponse = reply.response
        return response

    def _refused(self, call: Call, response: aiohttp.ClientResponse, body: bytes) -> ClusterError:
        wait = retry_after(response.headers)
        if wait is None and response.status == HTTPStatus.TOO_MANY_REQUESTS:
            wait = 1.0
        if wait is not None:
            self._gate.shut(wait)
        return refused(call, response.status, body, wait)

    async def _pass_gate(self, call: Call) -> None:
        """Wait until the server's Retry-After has passed; a wait that would eat the deadline is refused at once."""
        while left := self._gate.remaining:
            if left > self._deadline / 2:
                raise ClusterError(
                    f"{call}: held back, the API server asked all writers to wait {left:.0f} s more",
                    status=HTTPStatus.TOO_MANY_REQUESTS,
                    retry_after=left,
                    hint="it is tried again after that",
                )
            await asyncio.sleep(left)


def _probe_peer(response: aiohttp.ClientResponse) -> None:
    """Let the kernel ask a silent peer whether it lives: a vanished host is noticed in a minute, not at the timeout."""
    connection = response.connection
    peer = connection.transport.get_extra_info("socket") if connection and connection.transport else None
    if peer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
