"""Whatever a vendor's tool prints, it is that tool's problem, by its name: no parser of ours ends or burns for it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from hami_plugin.errors import DriverUnavailableError
from tests.support.rigs import rig
from tests.support.scale import spread

TOOLS = {
    "biren-br106-8": "brsmi",
    "cambricon-mlu590-8": "cnmon",
    "enflame-s60-8": "efsmi",
    "gaudi3-8": "hlSmi",
    "hygon-k100ai-8": "hySmi",
    "iluvatar-biv150-8": "ixsmi",
    "kunlun-p800-8": "xpuSmi",
    "metax-c500-8": "mxSmi",
    "mthreads-s4000-8": "mthreadsGmi",
    "aws-trn1-32xlarge": "neuronLs",
}
MANY = 5_000
DIGITS = "9" * MANY
PRINTED = {
    "a megabyte of braces": "{" * (1 << 20),
    "braces that nest": '{"a":' * 10_000,
    "brackets that nest": '{"a":' + "[" * 100_000,
    "a field of 200 KiB": 'index,uuid,name\n"' + "x" * (200 << 10) + '"\n',
    "a field of many lines": 'index,uuid,name\n"' + "x\n" * (200 << 10),
    "a number of 5,000 digits": f'{{"GPU": {DIGITS}, "elem": {DIGITS}}}\n{DIGITS}, {DIGITS}, {DIGITS}, {DIGITS}\n',
    "no end": "x" * (3 << 20),
    "lines without end": "GPU 0\n" * (1 << 17),
    "names that repeat": "GPU0:" * 200_000 + "\n" + "XPU 1:" * 200_000,
    "no text": "\x00\xff\ud800".encode("utf-8", "surrogatepass").decode("latin-1") * 1000,
    "numbers that are none": '[{"neuron_device": 1e999, "bdf": NaN}]\n{"card0": {"a": Infinity}}',
}


def says(tool: Path, text: str) -> None:
    """From now on the tool prints this, whatever it is asked."""
    printed = tool.with_name("printed")
    printed.write_text(text, encoding="latin-1")
    tool.unlink()
    tool.write_text(f"#!/bin/sh\nexec cat {printed}\n", encoding="utf-8")
    tool.chmod(0o755)


@pytest.mark.scenario("D15")
@pytest.mark.parametrize("printed", spread(PRINTED, part=3))
@pytest.mark.parametrize("profile", TOOLS)
def test_what_a_tool_may_print_is_the_problem_of_that_tool(profile: str, printed: str, tmp_path: Path) -> None:
    machine = rig(profile, tmp_path)
    tool = Path(machine.simulator.settings()[TOOLS[profile]])
    says(tool, PRINTED[printed])

    try:
        found = machine.driver.discover()
        told = [*found.problems, *(one.fault.message for one in found.sightings if one.fault)]
        told += machine.driver.links().problems
    except DriverUnavailableError as error:
        told = [str(error)]

    assert any(tool.name in words or str(tool) in words for words in told), told


@pytest.mark.parametrize("profile", TOOLS)
def test_a_tool_that_went_mad_after_it_was_sane_takes_no_device_away_for_good(profile: str, tmp_path: Path) -> None:
    machine = rig(profile, tmp_path)
    before = machine.snapshot().devices
    tool = Path(machine.simulator.settings()[TOOLS[profile]])
    sane = tool.read_bytes()
    says(tool, PRINTED["a megabyte of braces"])
    with suppress(DriverUnavailableError):
        machine.driver.discover()
    tool.write_bytes(sane)

    assert machine.snapshot().devices == before
