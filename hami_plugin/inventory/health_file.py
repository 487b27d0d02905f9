"""What a restart must remember: devices that are not healthy. A reboot of the machine clears it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hami_plugin.host.files import NewestText
from hami_plugin.inventory.health import Condition
from hami_plugin.model.device import Action, Fault, Health
from hami_plugin.process.log import logger

log = logger(__name__)

MAX_BYTES = 4 << 20
"""A thousand unwell devices are a tenth of it."""


class HealthMemory:
    """One file with all vendors' unwell devices. Monotonic times hold for one boot, and so does the file.

    It is written behind the call, on a thread of its own: a look at devices does not wait for the disk. While
    ``reading_only``, the file is another process's.
    """

    def __init__(self, path: Path, boot: str, *, reading_only: bool = False) -> None:
        self._path = path
        self._file = NewestText(path)
        self._complained = ""
        self._boot = boot
        self._reading_only = reading_only
        self._vendors: dict[str, dict[str, Any]] = self._read()

    def recall(self, vendor: str) -> dict[str, Condition]:
        """What was noted about a vendor's devices since the machine started."""
        found: dict[str, Condition] = {}
        for uuid, noted in self._vendors.get(vendor, {}).items():
            try:
                found[uuid] = _condition(noted)
            except (KeyError, TypeError, ValueError, ArithmeticError) as error:
                log.warning("remembered condition skipped", device=uuid, problem=repr(error))
        return found

    def note(self, vendor: str, conditions: Mapping[str, Condition]) -> None:
        """Write down a vendor's unwell devices, if that is news."""
        noted = {uuid: _entry(condition) for uuid, condition in conditions.items()}
        failed = self._file.failed
        if failed and failed != self._complained:
            log.warning("health not remembered", path=str(self._path), problem=failed)
        self._complained = failed
        if noted == self._vendors.get(vendor, {}) and not failed:
            return
        self._vendors = {**self._vendors, vendor: noted}
        if not self._reading_only:
            self._put()

    def own(self) -> None:
        """Write from now on, beginning with what was noted so far."""
        if self._reading_only:
            self._reading_only = False
            self._put()

    @property
    def problem(self) -> str:
        """Why it is not on file; empty when it is."""
        return self._file.failed

    def check(self) -> None:
        """Have it written once more, if somebody took the file away."""
        self._file.check()

    def wait(self, within: float = 5.0) -> bool:
        """Wait, on any thread, until all that was noted is on file, or has failed. False: not in time."""
        return self._file.wait(within)

    def close(self, within: float = 5.0) -> None:
        """As ``wait``, and let its thread end."""
        self._file.wait(within)
        self._file.close()

    def _put(self) -> None:
        self._file.put(json.dumps({"boot": self._boot, "vendors": self._vendors}))

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            text = json.loads(self._bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("remembered health not read", path=str(self._path), problem=str(error))
            return {}
        if not isinstance(text, dict) or text.get("boot") != self._boot or not isinstance(text.get("vendors"), dict):
            return {}
        return {str(name): dict(devices) for name, devices in text["vendors"].items() if isinstance(devices, dict)}

    def _bytes(self) -> bytes:
        with self._path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes, which no daemon writes")
        return data


def _entry(condition: Condition) -> dict[str, Any]:
    entry = asdict(condition)
    del entry["recovered"]  # minus infinity is no JSON, and a restart may count as a fresh start for relapses
    return entry


def _condition(noted: Mapping[str, Any]) -> Condition:
    fault = noted["fault"]
    since = float(noted["since"])
    if not math.isfinite(since):
        raise ValueError(f"since {since} is no time")
    return Condition(
        health=Health(noted["health"]),
        fault=Fault(reason=str(fault["reason"]), message=str(fault["message"]), action=Action(fault["action"]))
        if fault
        else None,
        since=since,
        looks=int(noted["looks"]),
        broken=bool(noted["broken"]),
        relapses=int(noted["relapses"]),
    )
