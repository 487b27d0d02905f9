"""Are the daemon's own files whole after a kill, and its directories what containers need?"""

import os
import shutil
import stat

import pytest

from hami_plugin.host.files import StateLock, write_atomically
from hami_plugin.host.paths import (
    MAX_ENTRIES,
    HostFiles,
    HostPaths,
    make_shared_directory,
    remove_files,
    write_shared,
)


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


@pytest.fixture(params=[0o077, 0o000], ids=["umask 077", "umask 000"])
def strict_umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
@pytest.mark.scenario("H5")
def test_a_shared_directory_is_open_to_all(tmp_path):
    make_shared_directory(tmp_path / "vgpu/containers/uid_main")

    modes = [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "vgpu", tmp_path / "vgpu/containers/uid_main")]
    assert modes[1] == 0o777


def test_the_parents_of_a_shared_directory_stay_closed(tmp_path, request):
    before = os.umask(0o077)
    request.addfinalizer(lambda: os.umask(before))
    make_shared_directory(tmp_path / "vgpu/containers/uid_main")

    assert stat.S_IMODE((tmp_path / "vgpu").stat().st_mode) == 0o700


@pytest.mark.scenario("H5")
@pytest.mark.usefixtures("strict_umask")
def test_a_shared_file_can_be_read_by_all_and_written_by_us_whatever_the_umask(tmp_path):
    write_shared(tmp_path / "limits", "x")

    assert stat.S_IMODE((tmp_path / "limits").stat().st_mode) == 0o644


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, flushed = tmp_path / "state", []
    monkeypatch.setattr(os, "fsync", lambda _file: flushed.append(path.exists()))

    write_atomically(path, "text")

    assert flushed == [False]


def test_a_state_directory_that_is_taken_away_is_claimed_again_unless_another_process_was_faster(tmp_path):
    first, second = StateLock(tmp_path / "state"), StateLock(tmp_path / "state")
    (tmp_path / "state").mkdir()
    assert first.acquire()
    shutil.rmtree(tmp_path / "state")
    assert not first.intact

    assert first.renew()
    assert first.intact
    assert not second.acquire()

    shutil.rmtree(tmp_path / "state")
    (tmp_path / "state").mkdir()
    assert second.acquire()
    assert not first.renew()
    second.release()
    assert first.renew()
    first.release()


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
    for number in range(MAX_ENTRIES + 500):
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
@pytest.mark.scenario("X5")
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


@pytest.mark.scenario("K11")
def test_one_process_holds_a_state_directory_and_the_next_one_takes_over(tmp_path):
    first, second = StateLock(tmp_path), StateLock(tmp_path)

    assert first.acquire()
    assert not second.acquire()
    assert second.holder() == (str(os.getpid()), 1)

    first.release()
    first.release()
    assert second.acquire()
    assert second.holder() == (str(os.getpid()), 2)
    second.release()


def test_a_process_that_claims_its_state_directory_again_keeps_its_generation(tmp_path):
    lock = StateLock(tmp_path)
    for _ in range(3):
        assert lock.acquire()
        lock.release()
    assert lock.acquire()
    (tmp_path / "lock").unlink()

    assert lock.renew()

    assert (lock.generation, lock.holder()) == (4, (str(os.getpid()), 4))
    lock.release()


@pytest.mark.parametrize("text", ["4711\n", "4711 x\n", "4711 -3\n", "4711 ²\n"])
def test_a_lock_of_a_former_version_has_no_generation(tmp_path, text):
    (tmp_path / "lock").write_text(text)
    lock = StateLock(tmp_path)

    assert lock.holder()[1] == 0
    assert lock.acquire()
    assert lock.generation == 1
    lock.release()


def test_a_lock_that_nobody_ever_took_has_no_holder(tmp_path):
    assert StateLock(tmp_path).holder() == ("", 0)


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
    assert files.seen("/usr/local/vgpu/containers/x") == tmp_path / "view/vgpu/containers/x"
    assert str(files.seen("/tmp/vgpulock")) == "/tmp/vgpulock"
    assert str(files.seen("/usr/localhost")) == "/usr/localhost"


@pytest.mark.scenario("X5")
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
