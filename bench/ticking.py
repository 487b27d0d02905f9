"""A process of its own that wakes up twice a second and does nothing else: what waking alone costs on this machine."""

from __future__ import annotations

import asyncio
import os

EVERY_S = 0.5


async def main() -> None:
    print(os.getpid(), flush=True)
    while True:  # noqa: ASYNC110  # waking up is what it is for
        await asyncio.sleep(EVERY_S)


if __name__ == "__main__":
    asyncio.run(main())
