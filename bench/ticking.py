"""A process that only wakes up twice a second: the baseline of an idle daemon on this machine."""

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
