"""Moore Threads's driver on simulated machines: what mthreads-gmi lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.rigs import rig
from vendors.mthreads import card, linked

S4000 = "mthreads-s4000-8"


def test_links_that_are_bonded_are_counted(tmp_path: Path) -> None:
    machine = rig(S4000, tmp_path)
    table = machine.root / "bin/mthreads-gmi.says/topo_-m"
    table.write_text(table.read_text().replace("MT1", "MT2"))

    assert linked(machine.settings)[0, 3] == 2
    assert (0, 4) not in linked(machine.settings)


@pytest.mark.parametrize("entry", [None, [], {}, {"Index": "0"}, {"Index": "one", "GPU UUID": "u"}])
def test_an_entry_without_a_name_is_a_problem_in_words(entry: Any) -> None:
    assert isinstance(card(entry), str)


@pytest.mark.parametrize("usage", [None, {}, {"Total": "N/A"}, {"Total": "48 GiB"}])
def test_a_gpu_whose_memory_is_not_told_is_known_and_not_offered(usage: Any) -> None:
    found = card({"Index": 3, "GPU UUID": "u", "PCI": {"Bus": "0000:12:00.0"}, "FB Memory Usage": usage})

    assert not isinstance(found, str)
    assert (found.index, found.address, found.memory) == (3, "0000:12:00.0", 0)
    assert "tells no memory of GPU 3" in found.trouble
