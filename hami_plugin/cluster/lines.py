"""A watch's bytes as lines. They can be longer than any reader's limit: one line is a whole object."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

from hami_plugin.errors import ClusterError

LONGEST = 16 * 2**20  # etcd holds 1.5 MiB an object; JSON may be several times longer than what etcd holds


async def lines(chunks: AsyncIterable[bytes], longest: int = LONGEST) -> AsyncGenerator[bytes, None]:
    """Split at line feeds. A last piece without one is yielded too: whether it is whole, only its parser can tell."""
    pending = bytearray()
    async for chunk in chunks:
        looked = len(pending)
        pending += chunk
        while (end := pending.find(b"\n", looked)) >= 0:
            line = bytes(pending[:end])
            del pending[: end + 1]
            looked = 0
            if line:
                yield line
        if len(pending) > longest:
            raise ClusterError(
                f"watch: a line of more than {longest} bytes without an end",
                hint="it is tried again; no object of the API server is that long",
            )
    if pending:
        yield bytes(pending)
