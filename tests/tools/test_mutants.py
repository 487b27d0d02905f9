"""Each mutant has its place in the code, so that a rename cannot leave one behind unnoticed."""

from __future__ import annotations

import pytest

from tests.mutants.__main__ import ROOT, read

MUTANTS = tuple(read(sorted((ROOT / "tests" / "mutants").glob("*.yaml"))))


@pytest.mark.parametrize("mutant", [mutant for _area, mutant in MUTANTS], ids=lambda mutant: mutant.what)
def test_a_mutant_changes_text_that_stands_in_its_file_once_and_names_tests_that_exist(mutant):
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    files = [test.partition("::")[0] for test in mutant.tests if "/" in test]  # beside them there are options of pytest
    assert files
    assert [file for file in files if not (ROOT / file).exists()] == []
