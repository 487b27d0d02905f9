"""The rule for subjects of commits."""

import subprocess
from pathlib import Path

import pytest

from tools import commits


@pytest.mark.parametrize(
    "subject",
    [
        "Return 400 for malformed pods",
        "scheduler: return 400 for malformed pods",
        "hami_plugin/node, cdi: process specs in order",
        "Merge branch 'a-very-long-name-of-a-branch-that-somebody-has-chosen-for-a-change' into main",
        "x" * commits.MAX_LENGTH,
    ],
)
def test_an_imperative_of_at_most_72_characters_holds(subject):
    assert commits.problems(subject) == []


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("x" * (commits.MAX_LENGTH + 1), "73 characters"),
        ("Return 400 for malformed pods.", "full stop"),
        ("Returned 400", "'Returned'"),
        ("Returning 400", "'Returning'"),
        ("scheduler: returns 400", "'returns'"),
        ("", "empty"),
    ],
)
def test_any_other_subject_is_refused_with_the_reason(subject, why):
    assert why in "; ".join(commits.problems(subject))


@pytest.fixture
def history(tmp_path, monkeypatch):
    """A repository whose branch has two commits, the second with a bad subject."""
    monkeypatch.chdir(tmp_path)

    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], check=True, capture_output=True)

    git("init", "--initial-branch=main")
    git("commit", "--allow-empty", "--message=Added everything")
    git("checkout", "-b", "change")
    git("commit", "--allow-empty", "--message=Count pods")
    git("commit", "--allow-empty", "--message=Counted nodes")
    return git


def test_only_what_the_change_adds_is_looked_at(history, capsys):
    assert commits.main(["main"]) == 1
    assert capsys.readouterr().out == "'Counted nodes' begins with 'Counted', which is not an imperative\n"
    history("commit", "--amend", "--allow-empty", "--message=Count nodes")
    assert commits.main(["main"]) == 0


def test_without_a_common_history_nothing_is_refused(history, capsys):
    assert commits.main(["origin/main"]) == 0
    assert "no common history" in capsys.readouterr().out


def test_a_hook_reads_the_first_line_that_is_no_comment(tmp_path):
    message = Path(tmp_path / "COMMIT_EDITMSG")
    message.write_text("# Please enter\n\nCounts pods\n\nWhy.\n")

    assert commits.main(["--message", str(message)]) == 1
