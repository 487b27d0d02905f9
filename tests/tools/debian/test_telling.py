"""How an installation's command ends."""

from types import SimpleNamespace

import pytest

from tools.debian import telling
from tools.debian.commands import LackingError, output, tool


def lacks(_say):
    raise LackingError("no root")


@pytest.mark.parametrize(("required", "status"), [(False, 0), (True, 1)])
def test_a_machine_that_cannot_fails_only_where_it_must(capsys, required, status):
    assert telling.main(lacks, absent="Nothing here", required=required) == status
    assert capsys.readouterr().out == "Nothing here: no root\n"


def test_steps_come_before_the_result(monkeypatch, capsys):
    times = iter([100.0, 102.5])
    monkeypatch.setattr(telling, "time", SimpleNamespace(monotonic=lambda: next(times)))

    def install(say):
        telling.timed(say)("unpacked")
        return "It is there"

    assert telling.main(install, absent="Nothing here") == 0
    assert capsys.readouterr().out == "   2.5 s  unpacked\nIt is there\n"


def test_a_command_that_fails_says_its_last_words_and_the_remedy():
    with pytest.raises(LackingError, match=r"sh -c echo broken >&2; exit 3 failed \(3\): broken \(try: another\)"):
        output([tool("sh"), "-c", "echo broken >&2; exit 3"], deadline_s=20, remedy="another")


def test_a_command_that_hangs_is_ended():
    with pytest.raises(LackingError, match=r"sleep 60 did not end within 0.1 s"):
        output([tool("sleep"), "60"], deadline_s=0.1)
