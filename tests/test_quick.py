"""``make quick`` finds the tests of what has changed."""

import subprocess

import pytest

from tests.support.quick import ROOT, changes, nearest


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("hami_plugin/allocation/ledger.py", "tests/allocation/test_ledger.py"),
        ("hami_plugin/process/log.py", "tests/process/test_log.py"),
        ("cdi/inject.py", "tests/cdi/test_inject.py"),
        ("vendors/kunlun/rules.py", "tests/vendors/kunlun/test_rules.py"),
        ("tests/protocol/test_lock.py", "tests/protocol/test_lock.py"),
        ("docs/operations.md", "tests/docs"),
        ("charts/hami-plugin/values.yaml", "tests/charts"),
    ],
)
def test_a_changed_file_has_its_nearest_tests_first(changed, expected):
    assert nearest([changed], ROOT)[0] == expected


def test_a_vendors_other_tests_follow():
    near = nearest(["vendors/mthreads/__init__.py"], ROOT)
    assert {"tests/vendors/mthreads/test_driver.py", "tests/vendors/mthreads/test_rules.py"} <= set(near[:4])


def test_whoever_imports_a_changed_module_is_tested():
    assert "tests/test_quick.py" in nearest(["tests/support/quick.py"], ROOT)


def test_whole_daemons_are_started_only_by_their_own_change():
    assert "tests/e2e/test_whole.py" in nearest(["tests/e2e/test_whole.py"], ROOT)
    assert not [test for test in nearest(["hami_plugin/protocol/keys.py"], ROOT) if "/e2e/" in test]


def test_what_is_committed_changed_and_new_on_a_branch_has_changed(tmp_path):
    def git(*words):
        who = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, timeout=30)

    git("init", "-b", "main")
    for name in ("same", "changed", "removed"):
        (tmp_path / name).write_text("a")
    git("add", ".")
    git("commit", "-m", "first")
    git("checkout", "-b", "branch")
    (tmp_path / "committed").write_text("a")
    (tmp_path / "removed").unlink()
    git("add", "--all")
    git("commit", "-m", "second")
    (tmp_path / "changed").write_text("b")
    (tmp_path / "new").write_text("a")

    assert sorted(changes(tmp_path)) == ["changed", "committed", "new"]
