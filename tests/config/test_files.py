from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hami_plugin.config.documents import MAX_BYTES, MissingFileError, read_text
from hami_plugin.errors import ConfigError


def problem(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_text(path)
    (line,) = caught.value.problems
    return line.replace(str(path), "FILE")


def test_a_file_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\xef\xbb\xbfa: caf\xc3\xa9\n")

    assert read_text(path) == "a: café\n"


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"#" * MAX_BYTES)

    assert len(read_text(path)) == MAX_BYTES


@pytest.mark.scenario("H6")
def test_a_file_that_is_missing_is_told_apart_from_other_failures(tmp_path: Path) -> None:
    path = tmp_path / "f"

    assert problem(path) == "FILE: does not exist; mount it, or leave the option out"
    with pytest.raises(MissingFileError):
        read_text(path)


@pytest.mark.scenario("H6")
def test_a_dangling_link_names_where_it_leads(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.symlink_to("..data/gone")

    assert problem(path) == "FILE: is a link to ..data/gone, which does not exist; check the ConfigMap and its keys"
    with pytest.raises(ConfigError) as caught:
        read_text(path)
    assert not isinstance(caught.value, MissingFileError)


def test_a_link_that_goes_in_circles_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.symlink_to("f")

    assert re.fullmatch(r"FILE: cannot be read: Too many levels .*; check the mount and its permissions", problem(path))


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert problem(tmp_path) == "FILE: is a directory; name the file inside it"


def test_a_named_pipe_that_nobody_writes_to_does_not_hold_up_the_start(tmp_path: Path) -> None:
    path = tmp_path / "f"
    os.mkfifo(path)

    assert problem(path) == "FILE: is not a regular file; mount or name a file"


def test_an_endless_device_is_refused() -> None:
    assert problem(Path("/dev/zero")) == "FILE: is not a regular file; mount or name a file"


@pytest.mark.scenario("H6")
def test_ten_megabytes_are_refused_without_being_parsed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a: b\n" * 2_000_000)

    assert problem(path) == "FILE: is larger than 1024 KiB, too large for a configuration; check the mounted file"


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a: 1\nb: caf\xe9\n")

    assert problem(path) == "FILE:2: byte 0xe9 is not UTF-8 text; save the file as UTF-8"


def test_a_path_with_a_zero_byte_is_an_error_and_no_traceback() -> None:
    assert "cannot be read: embedded null byte" in problem(Path("/tmp/a\0b"))


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read everything, for a moment."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_file_without_permission_says_so() -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "f"
        path.write_text("a: 1")
        path.chmod(0)
        with as_nobody():
            refused = problem(path)

    assert refused == "FILE: cannot be read: Permission denied; check the mount and its permissions"


def test_no_descriptor_stays_open_after_a_refusal(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(5):
        problem(tmp_path)
        problem(Path("/dev/zero"))

    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # another test's may be closed meanwhile
