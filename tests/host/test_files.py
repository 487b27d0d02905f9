"""Are the daemon's own files whole after a kill, and its directories what containers need?"""

import json
import os
import stat

import pytest

from hami_plugin.errors import HamiError
from hami_plugin.host.files import (
    MOST_ENTRIES,
    Journal,
    StateLock,
    make_shared_directory,
    remove_files,
    write_atomically,
    write_shared,
)
from hami_plugin.host.paths import HostFiles, HostPaths


def test_a_file_is_replaced_whole_with_its_mode_and_nothing_left_beside(tmp_path):
    path = tmp_path / "state"
    write_atomically(path, "old")
    inode = path.stat().st_ino

    write_atomically(path, "new", mode=0o644)

    assert path.read_text() == "new"
    assert path.stat().st_ino != inode
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_text_and_nothing_beside(tmp_path):
    path = tmp_path / "state"
    write_atomically(path, "old")

    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def strict_umask():
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_a_shared_directory_is_open_to_all_and_its_parents_are_not(tmp_path):
    make_shared_directory(tmp_path / "vgpu/containers/uid_main")

    modes = [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "vgpu", tmp_path / "vgpu/containers/uid_main")]
    assert modes == [0o700, 0o777]


def test_a_shared_directory_that_exists_keeps_its_files_and_gets_its_mode_back(tmp_path):
    path = tmp_path / "shared"
    make_shared_directory(path)
    (path / "usage.cache").write_text("mapped by a running container")
    path.chmod(0o700)

    make_shared_directory(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o777
    assert (path / "usage.cache").exists()


@pytest.mark.scenario("X5")
def test_files_go_by_name_and_by_their_ending_and_links_are_not_followed(tmp_path):
    folder, outside = tmp_path / "folder", tmp_path / "outside.cache"
    folder.mkdir()
    outside.touch()
    (folder / "a.cache").symlink_to(outside)
    (folder / "lock").touch()
    (folder / "kept").touch()
    os.mkfifo(folder / "b.cache")

    remove_files(folder, ["lock", "not-there"], ".cache")

    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert outside.exists()


@pytest.mark.scenario("X5")
def test_a_crowd_of_files_cannot_hide_the_one_that_is_named(tmp_path):
    for number in range(MOST_ENTRIES + 500):
        (tmp_path / f"{number}.txt").touch()
    (tmp_path / "region").touch()

    remove_files(tmp_path, ["region"], ".txt")

    assert not (tmp_path / "region").exists()
    assert len(list(tmp_path.iterdir())) >= 500


@pytest.mark.parametrize("kind", ["link", "file", "missing"])
def test_files_are_removed_in_no_other_place_than_the_folder(tmp_path, kind):
    place, real = tmp_path / "place", tmp_path / "real"
    real.mkdir()
    (real / "region").touch()
    match kind:
        case "link":
            place.symlink_to(real)
        case "file":
            place.touch()

    with pytest.raises(OSError, match="place"):
        remove_files(place, ["region"])

    assert (real / "region").exists()


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_something_else_in_the_place_of_a_shared_directory_is_an_error(tmp_path, kind):
    path, target = tmp_path / "shared", tmp_path / "secret"
    target.mkdir(mode=0o700)
    if kind == "file":
        path.write_text("")
    else:
        path.symlink_to(target if kind == "link" else tmp_path / "nothing")

    with pytest.raises(NotADirectoryError, match="in the way"):
        make_shared_directory(path)

    assert stat.S_IMODE(target.stat().st_mode) == 0o700


def test_one_process_holds_a_state_directory_and_the_next_one_takes_over(tmp_path):
    first, second = StateLock(tmp_path), StateLock(tmp_path)

    assert first.acquire()
    assert not second.acquire()
    assert second.holder() == str(os.getpid())

    first.release()
    first.release()
    assert second.acquire()
    second.release()


def test_a_lock_that_nobody_ever_took_has_no_holder(tmp_path):
    assert StateLock(tmp_path).holder() == ""


def test_entries_come_back_in_order_and_a_torn_line_is_passed_over(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path)
    assert journal.read() == []
    for n in range(3):
        journal.append({"n": n})
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"n": 3, "to')

    again = Journal(path)
    again.append({"n": 4})

    assert [entry["n"] for entry in again.read()] == [0, 1, 2, 4]


def test_an_entry_of_which_the_disk_took_a_part_spoils_no_later_one(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal")
    journal.append({"n": 0})
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:4]))
        with pytest.raises(OSError, match="only a part"):
            journal.append({"n": 1})

    journal.append({"n": 2})

    assert [entry["n"] for entry in journal.read()] == [0, 2]


def test_a_rewritten_journal_can_be_appended_to(tmp_path):
    journal = Journal(tmp_path / "journal")
    for n in range(9):
        journal.append({"n": n})

    journal.rewrite([{"n": 7}, {"n": 8}])
    journal.append({"n": 9})

    assert [entry["n"] for entry in journal.read()] == [7, 8, 9]


def test_entries_are_one_line_each_whatever_they_say(tmp_path):
    journal = Journal(tmp_path / "journal")
    entry = {"text": "a\nb\u2028\x00é", "n": [1, None, True]}

    journal.append(entry)

    assert len((tmp_path / "journal").read_bytes().splitlines()) == 1
    assert journal.read() == [json.loads(json.dumps(entry))]


def test_a_journal_that_cannot_be_read_says_where_and_what_to_do(tmp_path):
    (tmp_path / "journal").mkdir()

    with pytest.raises(HamiError, match=r"cannot read .*journal.*stateDir"):
        Journal(tmp_path / "journal").read()


@pytest.fixture
def files(tmp_path):
    for name in ("dev", "view/vgpu"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "dev/card0").touch()
    (tmp_path / "view/vgpu/libvgpu.so").touch()
    return HostFiles(paths=HostPaths(dev=tmp_path / "dev", hook_view=tmp_path / "view"))


def test_host_paths_are_looked_up_where_this_process_sees_them(files, tmp_path):
    assert files.exists("/dev/card0")
    assert not files.exists("/dev/card1")
    assert files.exists("/usr/local/vgpu/libvgpu.so")
    assert not files.exists("/usr/local/vgpu/license")
    assert files.exists(tmp_path / "dev")


def test_a_directory_in_the_place_of_a_file_is_no_file(files, tmp_path):
    (tmp_path / "view/vgpu/ld.so.preload").mkdir()

    assert files.is_file("/usr/local/vgpu/libvgpu.so")
    assert not files.is_file("/usr/local/vgpu/ld.so.preload")
    assert not files.is_file("/usr/local/vgpu/license")


def test_only_paths_under_the_hook_directory_move(files, tmp_path):
    assert files.writable("/usr/local/vgpu/containers/x") == tmp_path / "view/vgpu/containers/x"
    assert str(files.writable("/tmp/vgpulock")) == "/tmp/vgpulock"
    assert str(files.writable("/usr/localhost")) == "/usr/localhost"


def test_a_link_that_a_container_left_where_we_write_first_is_not_followed(tmp_path):
    secret = tmp_path / "journal"
    secret.write_text("ours")
    folder = tmp_path / "shared"
    make_shared_directory(folder)
    (folder / f".limits.{os.getpid()}.tmp").symlink_to(secret)

    write_shared(folder / "limits", "theirs")

    assert secret.read_text() == "ours"
    assert (folder / "limits").read_text() == "theirs"
    assert not (folder / "limits").is_symlink()
