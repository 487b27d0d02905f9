"""The library's client, made anew when what it trusts, or is trusted by, has changed on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hami_plugin.errors import ClusterError
from hami_plugin.log import logger

from .bare import ApiClient
from .credentials import Credentials
from .pacing import Pace

AGAIN_S = 10.0
"""The least time between two clients that are made because a certificate was refused."""

Stamp = tuple[tuple[str, tuple[int, int, int] | None], ...]

log = logger(__name__)


class Clients:
    """One client at a time. A connection keeps the certificates that it began with, so a new client has none of the old
    one's; the old one has ``patience`` seconds to finish its calls.
    """

    def __init__(self, credentials: Credentials, *, patience: float) -> None:
        # The library's default buffers up to 4 MiB for each watch; lines are split in `lines`, of any length.
        credentials.configuration.client_session_kwargs = {"read_bufsize": 2**16}
        self._credentials = credentials
        self._patience = patience
        self._stamp = self._look()
        self._client = ApiClient(credentials.configuration)
        self._leaving: dict[asyncio.Task[None], ApiClient] = {}
        self._pace = Pace(every=AGAIN_S, burst=2)
        self._problem = ""

    async def present(self) -> ApiClient:
        """The client of this moment. Files that cannot be used leave the last one in place."""
        try:
            await self._credentials.follow()
        except ClusterError as error:
            self._say(str(error))
        if (stamp := self._look()) != self._stamp and self._replace():
            self._stamp = stamp
            log.info("certificates for the API server read again", files=[path for path, _ in stamp])
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
        self._stamp = self._look()
        return self._replace()

    async def close(self) -> None:
        for task in self._leaving:
            task.cancel()
        for client in (self._client, *self._leaving.values()):
            await client.close()

    def _replace(self) -> bool:
        try:
            fresh = ApiClient(self._credentials.configuration)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            self._say(f"they cannot be used: {error}")
            return False
        self._problem = ""
        leaving = asyncio.get_running_loop().create_task(self._leave(self._client))
        self._leaving[leaving] = self._client
        leaving.add_done_callback(lambda task: self._leaving.pop(task, None))
        self._client = fresh
        return True

    async def _leave(self, client: ApiClient) -> None:
        await asyncio.sleep(self._patience)
        await client.close()

    def _look(self) -> Stamp:
        own = self._credentials.configuration
        return tuple((path, _stat(Path(path))) for path in (own.ssl_ca_cert, own.cert_file, own.key_file) if path)

    def _say(self, why: str) -> None:
        if why != self._problem:
            self._problem = why
            log.warning("certificates for the API server not read again", why=why)


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
