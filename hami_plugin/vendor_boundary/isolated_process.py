"""The driver's own process: opens the driver, answers calls one by one, and goes when nobody asks any more.

``python -m hami_plugin.vendor_boundary.isolated_process PIPE PARENT``: the number of an open file, and of a process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.vendor_boundary.isolated_driver import Busy, CallFailed, Done, DriverCall, receive, send

REPORT_S = 0.5
"""How often a call in progress reports which device it is about."""
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until the pipe is closed. The first message is a function that opens the driver."""
    pipe, parent = Connection(int(sys.argv[1])), int(sys.argv[2])
    _die_with(parent)
    # What a library prints goes where the daemon's own log goes, and so does a crash's traceback.
    os.dup2(2, 1)
    faulthandler.enable()
    # Whoever stops the daemon may signal its whole group; the daemon ends this process when it is done with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="driver")
    with suppress(EOFError, OSError):
        _serve(pipe, thread)


def _serve(pipe: Connection, thread: ThreadPoolExecutor) -> None:
    opening = receive(pipe)
    driver: Any = None
    while True:
        call: DriverCall = receive(pipe)
        if driver is None:
            opened = _answer(pipe, thread.submit(opening), driver)
            if not isinstance(opened, Done):
                send(pipe, opened)
                continue
            driver = opened.value
        unmetered = call.method in METERS and not hasattr(driver, call.method)
        method = _no_meter if unmetered else getattr(driver, call.method)
        send(pipe, _answer(pipe, thread.submit(method, *call.arguments, **call.named), driver))


METERS = ("energy", "load")


def _no_meter() -> dict[str, Any]:
    """What a driver tells that has no such meter."""
    return {}


def _answer(pipe: Connection, future: Future[Any], driver: Any) -> Done | CallFailed:
    """Wait for a call, and report meanwhile which device it is about."""
    about = reported = None
    while not wait_for([future], timeout=REPORT_S).done:
        about = driver.busy_with if driver is not None else None
        if about != reported:
            send(pipe, Busy(uuid=about))
            reported = about
    try:
        return Done(value=future.result())
    except DriverUnavailableError as error:
        return CallFailed(reason=error.reason, message=error.message, hint=error.hint)
    except Exception as error:  # noqa: BLE001  # a mistake in one vendor's driver ends in its reason, as a crash does
        traceback.print_exc()
        return CallFailed(reason=DriverReason.FAILED, message=f"{type(error).__name__}: {error}")


def _die_with(parent: int) -> None:
    """Be killed when the thread that started this process ends, however that comes about, and whatever hangs here."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(0)


if __name__ == "__main__":
    main()
