"""What a restart must not forget: devices that are not healthy. A reboot of the machine wipes the slate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hami_plugin.host.files import write_atomically
from hami_plugin.log import logger
from hami_plugin.model.device import Action, Fault, Health
from hami_plugin.policy.health import Condition

log = logger(__name__)


class HealthMemory:
    """One file with all vendors' unwell devices. Monotonic times hold for one boot, and so does the file."""

    def __init__(self, path: Path, boot: str) -> None:
        self._path = path
        self._boot = boot
        self._vendors: dict[str, dict[str, Any]] = self._read()

    def recall(self, vendor: str) -> dict[str, Condition]:
        """What was noted about a vendor's devices since the machine started."""
        found: dict[str, Condition] = {}
        for uuid, noted in self._vendors.get(vendor, {}).items():
            try:
                found[uuid] = _condition(noted)
            except (KeyError, TypeError, ValueError) as error:
                log.warning("remembered condition passed over", device=uuid, problem=repr(error))
        return found

    def note(self, vendor: str, conditions: Mapping[str, Condition]) -> None:
        """Write down a vendor's unwell devices, if that is news."""
        noted = {uuid: _entry(condition) for uuid, condition in conditions.items()}
        if noted == self._vendors.get(vendor, {}):
            return
        vendors = {**self._vendors, vendor: noted}
        try:
            write_atomically(self._path, json.dumps({"boot": self._boot, "vendors": vendors}))
        except OSError as error:
            log.warning("health not remembered", path=str(self._path), problem=str(error))
        else:
            self._vendors = vendors

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            text = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("remembered health not read", path=str(self._path), problem=str(error))
            return {}
        if not isinstance(text, dict) or text.get("boot") != self._boot or not isinstance(text.get("vendors"), dict):
            return {}
        return {str(name): dict(devices) for name, devices in text["vendors"].items() if isinstance(devices, dict)}


def _entry(condition: Condition) -> dict[str, Any]:
    entry = asdict(condition)
    del entry["recovered"]  # minus infinity is no JSON, and a restart may count as a fresh start for relapses
    return entry


def _condition(noted: Mapping[str, Any]) -> Condition:
    fault = noted["fault"]
    return Condition(
        health=Health(noted["health"]),
        fault=Fault(reason=str(fault["reason"]), message=str(fault["message"]), action=Action(fault["action"]))
        if fault
        else None,
        since=float(noted["since"]),
        looks=int(noted["looks"]),
        broken=bool(noted["broken"]),
        relapses=int(noted["relapses"]),
    )
