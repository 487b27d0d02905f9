"""Are good and bad specs told apart, the bad ones with the field that is wrong?

The first lines of a bad spec say what is wrong with it.
"""

import json
from pathlib import Path

import pytest
import yaml

from cdi.documents import read, write
from cdi.errors import InvalidSpecError

CORPUS = Path(__file__).parent / "corpus"
WRONG = "# wrong: "


def files(folder):
    found = sorted((CORPUS / folder).iterdir())
    assert found
    return pytest.mark.parametrize("path", found, ids=lambda path: path.stem)


@files("good")
def test_a_good_spec_is_read_and_means_the_same_when_written_again(path):
    found = read(path.read_text(encoding="utf-8"), str(path), yaml=yaml.safe_load)

    for name in ("again.json", "again.yaml"):
        assert read(write(found, name), name, yaml=yaml.safe_load) == found


@files("bad")
def test_a_bad_spec_is_refused_with_all_that_is_wrong(path):
    text = path.read_text(encoding="utf-8")
    expected = [line.removeprefix(WRONG) for line in text.splitlines() if line.startswith(WRONG)]

    with pytest.raises(InvalidSpecError) as refused:
        read(text, "/etc/cdi/x.yaml", yaml=yaml.safe_load)

    assert expected
    assert [str(problem) for problem in refused.value.problems] == [f"/etc/cdi/x.yaml: {wrong}" for wrong in expected]


@files("bad")
def test_a_bad_spec_is_bad_as_json_too(path):
    document = yaml.safe_load(path.read_text(encoding="utf-8"))

    with pytest.raises(InvalidSpecError):
        read(json.dumps(document), "x.json")
