"""What vendors' tools print, read as values."""

from __future__ import annotations

import pytest

from hami_plugin.sdk.tools import address, matrix, mebibytes, rows

TABLE = """
        \x1b[4mGPU0  GPU1  GPU2  NIC0  CPU Affinity  NUMA Affinity\x1b[0m
GPU0     X    MT2   SYS   PIX   0-31,64-95    0
GPU1    MT2    X    SYS   SYS   0-31,64-95    0
GPU2    SYS   SYS    X    SYS   32-63         1
NIC0    PIX   SYS   SYS    X

Legend:
  X = Self
"""


def test_a_table_of_links_is_read_without_its_network_cards_and_processors() -> None:
    cells = matrix(TABLE, "GPU")

    assert cells[0, 1] == cells[1, 0] == "MT2"
    assert len(cells) == 9
    assert {cells[i, i] for i in range(3)} == {"X"}


def test_a_row_is_read_by_the_names_of_its_columns_with_or_without_units() -> None:
    for heading in ("memory.total", "memory.total [MiB]"):
        (row,) = rows(f"index, {heading}, name\n0, 98304 MiB, One\n\n", "index", "memory.total")

        assert row == {"index": "0", "memory.total": "98304 MiB", "name": "One"}


@pytest.mark.parametrize("text", ["", "oops\n", "index, name\n0, One\n"])
def test_a_table_without_what_was_asked_for_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="the table lacks a column of"):
        rows(text, "index", "memory.total")


def test_the_table_of_a_single_device_has_one_cell() -> None:
    assert matrix("      GPU0 CPU Affinity\nGPU0  X    0-7\n", "GPU") == {(0, 0): "X"}


@pytest.mark.parametrize("text", ["", "GPU", "an error of no importance"])
def test_what_is_no_table_has_no_cells(text: str) -> None:
    assert matrix(text, "GPU") == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:4B:00.0", "0000:4b:00.0"),
        ("0000:05:00.0", "0000:05:00.0"),
        ("cc:00.0", "0000:cc:00.0"),
        ("0x0008:01:00.1 (bus)", "0008:01:00.1"),
        ("none", ""),
    ],
)
def test_an_address_is_spelt_as_sysfs_does(text: str, expected: str) -> None:
    assert address(text) == expected


@pytest.mark.parametrize("text", ["32768 MiB", "32768MiB", " 32768", "32768 MB"])
def test_memory_is_a_number_of_mib(text: str) -> None:
    assert mebibytes(text) == 32768


@pytest.mark.parametrize("text", ["", "[N/A]", "32 GiB", "-1 MiB"])
def test_memory_of_another_unit_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="not an amount of memory"):
        mebibytes(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("index, name\n0, " + "x" * 5000, "line 2 has 5003 characters"),
        ("index, name\n" * 5000, "more than 4096 lines"),
        ('index, name\n0, "' + ("x" * 100 + "\n") * 2000, "not a CSV table: field larger than field limit"),
    ],
    ids=["a long line", "many lines", "a long field"],
)
def test_a_table_that_is_none_is_an_error_whatever_is_wrong_with_it(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rows(text, "index", "name")


@pytest.mark.parametrize("text", ["GPU0 " * 5000, "GPU0 X\n" * 5000])
def test_a_matrix_larger_than_any_machine_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"lines|characters"):
        matrix(text, "GPU")
