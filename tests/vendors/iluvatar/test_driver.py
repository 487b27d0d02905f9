"""Iluvatar's driver on simulated machines: what ixsmi lists."""

from __future__ import annotations

import pytest

from hami_plugin.sdk import Card
from vendors.iluvatar import card, chip_of


def test_a_model_is_its_chip_by_whole_words() -> None:
    words = ["MR-V100", "MR-V50", "BI-V150", "BI-V100"]

    assert chip_of("Iluvatar BI-V150", words) == "BI-V150"
    assert chip_of("Iluvatar BI-V150S", words) == ""


@pytest.mark.parametrize("row", [{"index": ""}, {"index": "x"}, {"index": "-1"}, {"uuid": "N/A"}, {"uuid": ""}])
def test_a_row_without_a_name_is_a_problem_in_words(row: dict[str, str]) -> None:
    whole = {"index": "0", "uuid": "GPU-1", "name": "Iluvatar BI-V150", "memory.total": "32768 MiB"}

    assert isinstance(card({"pci.bus_id": "00000000:4B:00.0", **whole}), Card)
    assert isinstance(card({"pci.bus_id": "00000000:4B:00.0", **whole, **row}), str)
