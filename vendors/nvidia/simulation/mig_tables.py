"""How models are cut by MIG: from the tables that ship to the records of the state file."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

import yaml

from vendors.nvidia.simulation import limits
from vendors.nvidia.simulation.layout import Device
from vendors.nvidia.simulation.parts import Profile

Table = Mapping[str, Any]
"""A parsed MIG table (schema ``mig-table/v1``)."""

_ALIKE: Final = "memory_mib compute_slices memory_slices max_instances copy_engines decoders encoders"
_COLUMNS: Final = {name: name for name in _ALIKE.split()} | {
    "number": "nvml_enum",
    "id": "gi_profile_id",
    "multiprocessors": "sm_count",
    "jpegs": "jpeg",
    "ofas": "ofa",
}
"""Columns of a table by the fields of a record."""


def load(name: str) -> Table:
    """The table of that name, as it ships with the daemon's machine profiles."""
    text = (files("hami_plugin.simulation") / "mig" / f"{name}.yaml").read_text(encoding="utf-8")
    table: Table = yaml.safe_load(text)
    return table


def describe(record: Device, table: Table) -> None:
    """Write into the record how its card may be cut."""
    record.mig_memory_slices = int(table["memory_slices"])
    record.mig_compute_slices = int(table["compute_slices"])
    record.mig_max_devices = int(table["max_mig_devices"])
    rows = table["profiles"]
    record.profile_count = len(rows)
    for position, row in enumerate(rows):
        record.profiles[position] = _profile(row)


def _profile(row: Mapping[str, Any]) -> Profile:
    starts = [int(start) for start in row["placements"]["starts"]]
    return Profile(
        **{field: row[column] for field, column in _COLUMNS.items()},
        size=row["placements"]["size"],
        start_count=len(starts),
        starts=(ctypes.c_uint32 * limits.STARTS)(*starts),
        name=str(row["name"]).encode(),
    )
