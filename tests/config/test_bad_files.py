"""A configuration that is wrong in any way ends the start with status 2 and one line for what is wrong with it."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from hami_plugin.cli import main
from hami_plugin.config import documents
from hami_plugin.config.documents import read_yaml

pytestmark = pytest.mark.scenario("H6")

WORDS = {
    "syntax": ("nodeName: n\nlogLevel: [debug\n", ":3:1: is not YAML: while parsing a flow sequence"),
    "unknown key": ("nodeName: n\nrescanSecond: 3\n", ":2: rescanSecond: is not a known key; did you mean rescanSeco"),
    "wrong type": ("nodeName: n\nrescanSeconds: often\n", ':2: rescanSeconds: "often": must be a number'),
    "negative": ("nodeName: n\nrescanSeconds: -3\n", ":2: rescanSeconds: -3: must be above 0.0; the default is 30"),
    "no number": ("nodeName: n\nrescanSeconds: .nan\n", ":2: rescanSeconds: "),
    "ten megabytes": ("a: b\n" * 2_000_000, ": is larger than 1024 KiB, too large for a configuration"),
    "deep": ("[" * 65_536, ": is nested more than 50 levels deep"),
    "a number of a megabyte": ("rescanSeconds: 1" + ":1" * 400_000, "has an impossible value"),
    "twice": ("nodeName: n\nnodeName: m\n", ":2: nodeName: is set twice, first on line 1"),
    "no mapping": ("- nodeName\n", ":1: must hold keys at the top, not list"),
    "no text": ("nodeName: \x00\n", ": is not YAML: unacceptable character"),
}


def started(path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["run", "--config", str(path), "--node-name", "n"])
    assert isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


@pytest.mark.parametrize("wrong", WORDS)
def test_a_start_with_a_wrong_file_ends_with_status_2_and_says_where_and_why(wrong: str, tmp_path: Path) -> None:
    path, (content, words) = tmp_path / "config.yaml", WORDS[wrong]
    path.write_text(content)

    status, output = started(path)

    assert status == 2
    assert f"{path}{words}" in output or (str(path) in output and words in output)
    assert len(output) < 2_000
    assert "Traceback" not in output


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "does not exist; mount it, or leave the option out"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "is a link to nowhere, which does not exist"),
    "link to itself": (lambda path: path.symlink_to(path.name), "cannot be read: Too many levels of symbolic links"),
    "directory": (lambda path: path.mkdir(), "is a directory"),
    "pipe": (os.mkfifo, "is not a regular file"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_start_without_a_file_where_one_is_named_ends_with_status_2(place: str, tmp_path: Path) -> None:
    path, (make, words) = tmp_path / "config.yaml", PLACES[place]
    make(path)

    status, output = started(path)

    assert status == 2
    assert words in output
    assert str(path) in output


def test_the_process_itself_ends_with_status_2_before_it_does_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"nodeName: n\nrescanSeconds: -3\nstateDir: {tmp_path / 'state'}\n")

    done = subprocess.run(
        [sys.executable, "-m", "hami_plugin", "run", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 2
    assert f"{path}:2: rescanSeconds: -3: must be above 0.0" in done.stderr
    assert not (tmp_path / "state").exists()


class ConfigMap:
    """A volume as the kubelet keeps it: each version in a folder of its own, and one link that is swapped."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "config.yaml"
        self.path.symlink_to("..data/config.yaml")
        self._versions = itertools.count()
        self._now: Path | None = None

    def swap(self, text: str) -> None:
        """Write a version, let the link lead to it, and remove the one before."""
        folder = self.root / f"..{next(self._versions)}"
        folder.mkdir()
        (folder / "config.yaml").write_text(text)
        (self.root / "..new").symlink_to(folder.name)
        (self.root / "..new").rename(self.root / "..data")
        if self._now:
            shutil.rmtree(self._now)
        self._now = folder


@pytest.fixture
def volume(tmp_path: Path) -> ConfigMap:
    return ConfigMap(tmp_path)


def test_a_volume_that_is_swapped_all_the_time_is_read_as_one_version_or_the_other(volume: ConfigMap) -> None:
    versions = [f"{'# ' + 'x' * 100}\n" * 2_000 + f"rescanSeconds: {n}\nhttpPort: {n}\n" for n in (1, 2)]
    volume.swap(versions[0])
    stop = threading.Event()

    def swapping() -> None:
        for text in itertools.cycle(versions):
            if stop.is_set():
                return
            volume.swap(text)

    thread = threading.Thread(target=swapping)
    thread.start()
    try:
        read = {documents.read_text(volume.path) for _ in range(1_000)}
    finally:
        stop.set()
        thread.join()

    assert read <= set(versions)


def test_a_version_that_goes_while_its_file_is_opened_is_no_missing_file(
    volume: ConfigMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link was followed to a folder, and that was removed before the file in it was opened."""
    volume.swap("rescanSeconds: 1\n")
    opened, calls = os.open, itertools.count()

    def raced(path: str, flags: int) -> int:
        if next(calls) == 0:
            volume.swap("rescanSeconds: 2\n")
            raise FileNotFoundError(2, "No such file or directory", path)
        return opened(path, flags)

    monkeypatch.setattr(documents, "_without_waiting", raced)

    assert read_yaml(volume.path).value == {"rescanSeconds": 2}
