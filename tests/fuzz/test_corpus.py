"""What fuzzing has ever found, fed to every parser again: seeds, inputs that lead far, and those that once broke it."""

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.scenario("X3")
@pytest.mark.parametrize("target", TARGETS)
def test_a_parser_survives_all_that_was_ever_found(target):
    inputs = sorted((CORPUS / target).iterdir())

    assert inputs
    for file in inputs:
        try:
            TARGETS[target](file.read_bytes())
        except Exception as error:
            error.add_note(f"the input is {file.relative_to(CORPUS)}")
            raise


def test_every_corpus_belongs_to_a_target():
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
