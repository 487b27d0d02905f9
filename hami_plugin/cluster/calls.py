"""One request to the API server: identity, deadline, Retry-After, and a report of how it went."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlencode

import aiohttp

from hami_plugin.errors import ClusterError
from hami_plugin.model.ports import Observer
from hami_plugin.model.views import Json, anonymous, misshapen

from .clients import Clients
from .credentials import Credentials
from .oddities import Oddities
from .pacing import Gate
from .reachability import Reachability
from .replies import Call, Reading, decoded, refused, retry_after, unanswered

UNREACHABLE = "unreachable"
_LOST = (aiohttp.ClientError, OSError, TimeoutError)

_BEFORE_SENDING = (aiohttp.ClientConnectorError, aiohttp.ClientConnectorCertificateError)

LONGEST_ANSWER = 64 * 2**20
"""Bytes. A page of 500 usual pods has about 10 MiB."""

T = TypeVar("T")


class TooLongError(ClusterError):
    """An answer that is longer than anybody should read at once."""


class ApiCalls:
    """Sends calls. It repeats nothing, but for a token that was replaced at its source: a 401 changed nothing."""

    def __init__(self, credentials: Credentials, *, observer: Observer, deadline: float, connections: int) -> None:
        self.health = Reachability()
        self.oddities = Oddities(observer)
        self._clients = Clients(credentials, patience=deadline, connections=connections)
        self._credentials = credentials
        self._observer = observer
        self._deadline = deadline
        self._gate = Gate()

    async def close(self) -> None:
        await self._clients.close()

    async def json(self, call: Call) -> dict[str, Any]:
        """Send, and read the answer, all within the deadline. ``ClusterError`` for anything but success."""

        async def read(response: aiohttp.ClientResponse) -> Reading:
            return await decoded(call, await _body(call, response))

        if call.writes:
            await self._pass_gate(call)
        reading = await self._ask(call, aiohttp.ClientTimeout(total=None), read)
        self.cut(call.kind, reading)
        found: dict[str, Any] = reading.value
        return found

    async def object(self, call: Call, view: Callable[[Json], T]) -> T:
        """As ``json``, for one object. ``ClusterError`` also for one without a name."""
        found = await self.json(call)
        if why := anonymous(found):
            self.oddities.note(call.kind, call.name, why)
            raise ClusterError(
                f"{call}: the answer is not the object that was asked for: {why}", hint="it is tried again"
            )
        if why := misshapen(found):
            self.oddities.note(call.kind, call.name, why)
        return view(found)

    def cut(self, kind: str, reading: Reading) -> None:
        """Count and name the objects of which a part was left out."""
        for name in reading.cut:
            self.oddities.note(kind, name, reading.why)

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
                await self._accepted(call, response)
                result = await read(response)
            outcome = str(response.status)
        except ClusterError as error:
            outcome = str(error.status) if error.status else UNREACHABLE
            self.health.failed(call, error)
            raise
        except Exception as error:  # the line between what a server answers and this process
            why = f"none within {self._deadline:g} s" if isinstance(error, TimeoutError) else error
            failure = unanswered(call, why if str(why) else type(error).__name__)
            self.health.failed(call, failure)
            raise failure from error
        finally:
            self._observer.api_call(call.verb, call.kind, outcome, time.monotonic() - started)
        self.health.succeeded(call)
        return result

    async def _send(self, call: Call, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:  # noqa: ASYNC109  # as above
        identity = self._credentials.authorization()
        try:
            response = await self._exchange(call, identity, timeout)
        except (aiohttp.ClientError, OSError) as error:
            # A handshake that fails has sent nothing yet, so that even a write may be sent again.
            if not _untrusted(error) or not await self._clients.renew() or not isinstance(error, _BEFORE_SENDING):
                raise
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
        client = await self._clients.present()
        return await client.request(
            call.method, f"{call.path}{query}", headers=headers, body=call.body, timeout=timeout
        )

    async def _accepted(self, call: Call, response: aiohttp.ClientResponse) -> None:
        """``ClusterError`` for an answer that is not a success."""
        if response.ok:
            return
        wait = retry_after(response.headers)
        if wait is None and response.status == HTTPStatus.TOO_MANY_REQUESTS:
            wait = 1.0
        if wait is not None:
            self._gate.shut(wait)
        raise await refused(call, response.status, await _body(call, response), wait)

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


async def _body(call: Call, response: aiohttp.ClientResponse) -> bytes:
    """The whole answer, up to a length. ``TooLongError`` beyond that."""
    parts, length = [], 0
    async for chunk in response.content.iter_any():
        length += len(chunk)
        if length > LONGEST_ANSWER:
            response.close()
            raise TooLongError(
                f"{call}: the answer is longer than {LONGEST_ANSWER} bytes",
                status=response.status,
                hint="a list is asked for in smaller pages",
            )
        parts.append(chunk)
    response.release()
    return b"".join(parts)


def _untrusted(error: BaseException | None) -> bool:
    """Whether one side has refused the other's certificate."""
    while error is not None and not isinstance(error, ssl.SSLError | ssl.CertificateError):
        error = error.__cause__
    return error is not None


def _probe_peer(response: aiohttp.ClientResponse) -> None:
    """Let the kernel ask a silent peer whether it lives: a vanished host is noticed in a minute, not at the timeout."""
    connection = response.connection
    peer = connection.transport.get_extra_info("socket") if connection and connection.transport else None
    if peer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
