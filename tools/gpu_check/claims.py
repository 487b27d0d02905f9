"""What the simulation claims of real hardware, in one file: a machine with a card may have no C compiler.

``python -m tools.gpu_check.claims`` writes it anew from the C headers, the machine profiles and the MIG tables.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hami_plugin.simulation.c_compiler import DEADLINE_S, BuildError, compiler
from hami_plugin.simulation.machines import load_machine, machine_names
from vendors.nvidia.simulation import SOURCES, records
from vendors.nvidia.simulation.faults import SYMBOLS
from vendors.nvidia.simulation.layout import SimDevice

FILE = Path(__file__).with_name("claims.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """``structs`` by C name: size, offsets, version word. ``models`` by NVML's name: fact → every value it may have."""

    codes: Mapping[str, int]
    structs: Mapping[str, Mapping[str, Any]]
    symbols: Sequence[str]
    models: Mapping[str, Mapping[str, Sequence[Any]]]
    mig: Mapping[str, Mapping[str, Any]]

    def code(self, name: str) -> int:
        """NVML's number for a refusal, such as ``NOT_FOUND``."""
        return self.codes[name]


def load(path: Path = FILE) -> Claims:
    return Claims(**json.loads(path.read_text(encoding="utf-8")))


_STRUCT = re.compile(r"typedef struct \{(?P<body>.*?)\n\} (?P<name>\w+);", re.DOTALL)
_UNION = re.compile(r"union \{.*?\}", re.DOTALL)
_MEMBER = re.compile(r"(\w+)(?:\[\d+\])?\s*[,;]")
_CODE = re.compile(r"\bNVML_(\w+) = (\d+),")
_VERSION = re.compile(r"\b(?:STRUCT|REQUIRE)_VERSION\((?:\w+, )?(nvml\w+), (\d+)\)")


def text() -> str:
    """The file's whole text. BuildError when no C compiler can be asked for sizes."""
    header = (SOURCES / "nvml_abi.h").read_text(encoding="ascii")
    claims = {
        "codes": {name: int(number) for name, number in _CODE.findall(header)},
        "structs": _structs(header),
        "symbols": sorted(SYMBOLS),
        "models": _models(),
        "mig": _tables(),
    }
    return json.dumps(claims, indent=1, sort_keys=True) + "\n"


def _structs(header: str) -> dict[str, Any]:
    """Size, offsets of members, and version words of every structure, as the compiler lays them out."""
    versions = sorted({pair for source in SOURCES.glob("*.c") for pair in _VERSION.findall(source.read_text())})
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "nvml_abi.h"', "int main(void) {"]
    for match in _STRUCT.finditer(header):
        name = match["name"]
        lines.append(f'printf("{name} size %zu\\n", sizeof({name}));')
        members = _MEMBER.findall(_UNION.sub("union", match["body"]))
        lines += [f'printf("{name} {member} %zu\\n", offsetof({name}, {member}));' for member in members]
    lines += [f'printf("{name} word %u\\n", STRUCT_VERSION({name}, {number}));' for name, number in versions]
    structs: dict[str, Any] = {}
    for line in _run("\n".join([*lines, "return 0; }"])).splitlines():
        name, what, number = line.split()
        struct = structs.setdefault(name, {"offsets": {}})
        if what in ("size", "word") and what not in struct:
            struct[what] = int(number)
        else:
            struct["offsets"][what] = int(number)
    return structs


def _run(source: str) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "sizes"
        command = [*compiler(), "-std=gnu11", f"-I{SOURCES}", "-x", "c", "-", "-o", str(program)]
        made = subprocess.run(command, input=source, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        if made.returncode:
            raise BuildError(f"{command[0]} cannot compile nvml_abi.h:\n{made.stderr.strip()}")
        return subprocess.run([program], capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout


def _models() -> dict[str, Any]:
    """For each model, every value that some profile gives it: machines may differ in how they wire a card."""
    found: dict[str, dict[str, list[Any]]] = {}
    for name in machine_names():
        machine = load_machine(name)
        if machine.vendor != "nvidia":
            continue
        tables = [device.extra.get("mig_table") for device in machine.devices]
        for record, table in zip(records.devices(machine), tables, strict=True):
            claims = found.setdefault(record.name.decode(), {})
            for key, value in {**_facts(record), "mig": table}.items():
                values = claims.setdefault(key, [])
                if value not in values:
                    values.append(value)
    return {model: {key: sorted(values, key=repr) for key, values in found[model].items()} for model in found}


def _facts(record: SimDevice) -> dict[str, Any]:
    ports = [port for port in record.links[: record.link_count] if port.active]
    return {
        "memory_mib": record.memory >> 20,
        "capability": [record.capability_major, record.capability_minor],
        "architecture": record.architecture,
        "brand": record.brand,
        "cores": record.cores,
        "serial": bool(record.serial),
        "ecc": bool(record.ecc),
        "row_remapping": bool(record.ecc and record.row_remapping),
        "addressing": record.addressing,
        "own_memory_node": record.memory_node >= 0,
        "fabric": bool(record.fabric_state),
        "link_count": record.link_count,
        "link_version": record.link_version,
        "active_links": len(ports),
        "remote_types": sorted({port.remote_type for port in ports}),
    }


def _tables() -> dict[str, Any]:
    return dict(records.load_tables())


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
