"""HTTP to the API server, over connections that are made anew when what they trust, or prove, has changed on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from hami_plugin.errors import ClusterError
from hami_plugin.log import logger

from .access import Access
from .credentials import Credentials, stamp
from .pacing import Pace

AGAIN_S = 10.0
"""The least time between two clients that are made because a certificate was refused."""
READ_BYTES = 2**16
"""Of one connection, before its reader takes them. The library's default is a megabyte for each watch."""

Seen = tuple[object, ...]

log = logger(__name__)


class Client:
    """Connections by one set of certificates: at most ``connections`` at a time. Who finds none free waits for one.

    The library takes the connection next that was idle longest, so that none ever lapses while calls come: without a
    bound there are as many as were ever needed at once.
    """

    def __init__(self, access: Access, connections: int) -> None:
        context = access.context()
        self._access = access
        self._proxy = access.proxy or _proxy(access.host)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, ssl=context or True),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BYTES,
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: Mapping[str, Any] | None,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # how aiohttp is given it
    ) -> aiohttp.ClientResponse:
        """The answer once its head is there. Whoever asks reads its body, and releases it."""
        return await self._session.request(
            method,
            f"{self._access.host}{path}",
            headers=headers,
            data=None if body is None else json.dumps(body).encode(),
            timeout=timeout,
            proxy=self._proxy or None,
            server_hostname=self._access.server_name or None,
        )

    async def close(self) -> None:
        await self._session.close()


def _proxy(host: str) -> str:
    """The environment's proxy for this address (``HTTPS_PROXY``, ``NO_PROXY``); empty where there is none."""
    parts = urlsplit(host)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return ""
    return getproxies().get(parts.scheme, "")


class Clients:
    """One client at a time. A connection keeps the certificates that it began with, so a new client has none of the old
    one's; the old one has ``patience`` seconds to finish its calls.
    """

    def __init__(self, credentials: Credentials, *, patience: float, connections: int) -> None:
        self._credentials = credentials
        self._patience = patience
        self._connections = connections
        self._seen = self._look()
        self._client = Client(credentials.access, connections)
        self._leaving: dict[asyncio.Task[None], Client] = {}
        self._pace = Pace(every=AGAIN_S, burst=2)
        self._problem = ""

    async def present(self) -> Client:
        """The client of this moment. Files that cannot be used leave the last one in place."""
        try:
            await self._credentials.follow()
        except ClusterError as error:
            self._say(str(error))
        if (seen := self._look()) != self._seen and self._replace():
            self._seen = seen
            files = [str(path) for path in self._credentials.access.files]
            log.info("certificates for the API server read again", files=files)
        return self._client

    async def renew(self) -> bool:
        """A certificate was refused: read everything again, at most once in a while. Whether that was done."""
        if self._pace.wait:
            return False
        self._pace.take()
        try:
            await self._credentials.renew()
        except ClusterError as error:
            self._say(str(error))
        self._seen = self._look()
        return self._replace()

    async def close(self) -> None:
        for task in self._leaving:
            task.cancel()
        for client in (self._client, *self._leaving.values()):
            await client.close()

    def _replace(self) -> bool:
        try:
            fresh = Client(self._credentials.access, self._connections)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            self._say(f"they cannot be used: {error}")
            return False
        self._problem = ""
        leaving = asyncio.get_running_loop().create_task(self._leave(self._client))
        self._leaving[leaving] = self._client
        leaving.add_done_callback(lambda task: self._leaving.pop(task, None))
        self._client = fresh
        return True

    async def _leave(self, client: Client) -> None:
        await asyncio.sleep(self._patience)
        await client.close()

    def _look(self) -> Seen:
        access = self._credentials.access
        return (*access.connected_by, *(stamp(path) for path in access.files))

    def _say(self, why: str) -> None:
        if why != self._problem:
            self._problem = why
            log.warning("certificates for the API server not read again", why=why)
