"""Are our specs written whole or not at all, whatever fails and whenever the process dies?"""

import errno
import os
import stat
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from cdi.documents import to_json
from cdi.errors import StoreError
from cdi.names import QualifiedName
from cdi.store import Calls, Changes, Store, load
from tests.support.specs import spec

ROOT = Path(__file__).parents[2]
OLD, NEW = to_json(spec("gpu0")), to_json(spec("gpu0", "gpu1"))
STEPS = ("open", "write", "fchmod", "fsync", "rename")


class KilledError(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


def failing(step, error):
    def fail(*_arguments):
        raise error

    return Calls(**{step: fail})


def full(step, number):
    return failing(step, OSError(number, os.strerror(number)))


def content(directory):
    return {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()}


@pytest.fixture(params=[0o077, 0o000], ids=["umask 077", "umask 000"])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.scenario("H5")
def test_everybody_can_read_what_is_written_whatever_the_umask(tmp_path):
    directory = tmp_path / "cdi"

    assert Store(directory, "hami-").write("hami-gpu.json", NEW)

    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert stat.S_IMODE((directory / "hami-gpu.json").stat().st_mode) == 0o644
    assert content(directory) == {"hami-gpu.json": NEW}


def test_what_is_there_already_is_not_written_again(tmp_path):
    store = Store(tmp_path, "hami-")
    store.write("hami-gpu.json", OLD)
    before = (tmp_path / "hami-gpu.json").stat()

    assert not Store(tmp_path, "hami-", full("open", errno.EROFS)).write("hami-gpu.json", OLD)

    after = (tmp_path / "hami-gpu.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert store.write("hami-gpu.json", NEW)


def edited(path):
    path.write_text("{}", encoding="utf-8")


def closed(path):
    path.chmod(0o600)


def linked(path):
    path.rename(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("meddle", [edited, closed, linked, os.unlink], ids=lambda meddle: meddle.__name__)
def test_what_somebody_changed_is_written_again(tmp_path, meddle):
    store = Store(tmp_path, "hami-")
    store.write("hami-gpu.json", OLD)
    meddle(tmp_path / "hami-gpu.json")

    assert store.sync({"hami-gpu.json": OLD}).written == ("hami-gpu.json",)

    assert not (tmp_path / "hami-gpu.json").is_symlink()
    assert stat.S_IMODE((tmp_path / "hami-gpu.json").stat().st_mode) == 0o644
    assert store.sync({"hami-gpu.json": OLD}) == Changes()


def test_only_what_is_ours_and_no_longer_wanted_goes(tmp_path):
    foreign = {"vendor.json": "theirs", "hami-notes.txt": "notes", ".vendor.json.writing": "half", "hami.json": "?"}
    for name, text in foreign.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    store = Store(tmp_path, "hami-")
    store.sync({"hami-gpu.json": OLD, "hami-npu.yaml": "x"})

    changes = store.sync({"hami-gpu.json": OLD})

    assert changes == Changes(removed=("hami-npu.yaml",))
    assert content(tmp_path) == {**foreign, "hami-gpu.json": OLD}
    assert store.names() == ("hami-gpu.json",)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "No space left on device; free space on its file system"),
        (errno.EROFS, "Read-only file system; mount it for writing"),
        (errno.EACCES, "Permission denied; let this user write there, or run as root"),
        (errno.EIO, "Input/output error; see the kernel's log for its file system"),
    ],
)
@pytest.mark.scenario("H1")
def test_whatever_fails_the_old_spec_stays_and_nothing_else(tmp_path, step, number, remedy):
    Store(tmp_path, "hami-").write("hami-gpu.json", OLD)

    with pytest.raises(StoreError) as refused:
        Store(tmp_path, "hami-", full(step, number)).write("hami-gpu.json", NEW)

    assert str(refused.value) == f"cannot write {tmp_path}/hami-gpu.json: {remedy}"
    assert content(tmp_path) == {"hami-gpu.json": OLD}
    assert Store(tmp_path, "hami-").write("hami-gpu.json", NEW)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.scenario("H2")
def test_a_process_that_dies_leaves_the_old_spec_and_the_next_start_cleans_up(tmp_path, step):
    Store(tmp_path, "hami-").write("hami-gpu.json", OLD)

    with pytest.raises(KilledError):
        Store(tmp_path, "hami-", failing(step, KilledError())).sync({"hami-gpu.json": NEW})

    assert (tmp_path / "hami-gpu.json").read_text(encoding="utf-8") == OLD
    assert [str(name) for name in load([tmp_path]).names] == ["example.com/gpu=gpu0"]
    assert load([tmp_path]).problems == ()
    assert Store(tmp_path, "hami-").sync({"hami-gpu.json": NEW}).written == ("hami-gpu.json",)
    assert content(tmp_path) == {"hami-gpu.json": NEW}


def test_a_half_written_file_is_cleaned_even_if_its_spec_is_no_longer_wanted(tmp_path):
    with pytest.raises(KilledError):
        Store(tmp_path, "hami-", failing("fsync", KilledError())).write("hami-old.json", OLD)

    assert Store(tmp_path, "hami-").clean() == (".hami-old.json.writing",)
    assert content(tmp_path) == {}


def test_a_write_that_takes_only_a_part_goes_on(tmp_path):
    Store(tmp_path, "hami-", Calls(write=lambda file, data: os.write(file, data[:7]))).write("hami-gpu.json", NEW)

    assert content(tmp_path) == {"hami-gpu.json": NEW}


@pytest.mark.parametrize("what", ["written", "removed"])
def test_the_directory_is_flushed_after_the_spec_has_its_name_or_is_gone(tmp_path, what):
    store, flushed = Store(tmp_path, "hami-"), []
    if what == "removed":
        store.write("hami-gpu.json", OLD)

    def fsync(file):
        flushed.append((Path(f"/proc/self/fd/{file}").readlink(), sorted(content(tmp_path))))

    watched = Store(tmp_path, "hami-", Calls(fsync=fsync))
    if what == "written":
        watched.write("hami-gpu.json", NEW)
    else:
        watched.remove_others([])

    assert flushed[-1] == (tmp_path, ["hami-gpu.json"] if what == "written" else [])


def test_a_directory_that_cannot_be_flushed_is_no_failure(tmp_path):
    def fsync(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    assert Store(tmp_path, "hami-", Calls(fsync=fsync)).write("hami-gpu.json", NEW)
    assert content(tmp_path) == {"hami-gpu.json": NEW}


def test_a_directory_is_made_but_not_its_parents(tmp_path):
    with pytest.raises(StoreError) as refused:
        Store(tmp_path / "var/run/cdi", "hami-").write("hami-gpu.json", NEW)

    assert str(refused.value) == (
        f"cannot write {tmp_path}/var/run/cdi/hami-gpu.json: No such file or directory; "
        f"create {tmp_path}/var/run, or mount it from the host"
    )
    assert content(tmp_path) == {}


def test_a_file_in_the_directorys_place_is_named(tmp_path):
    (tmp_path / "cdi").write_text("", encoding="utf-8")

    with pytest.raises(StoreError, match="Not a directory; remove the file that stands where a directory should"):
        Store(tmp_path / "cdi", "hami-").sync({"hami-gpu.json": NEW})


def test_a_spec_that_cannot_be_removed_is_named(tmp_path):
    Store(tmp_path, "hami-").write("hami-gpu.json", OLD)

    with pytest.raises(StoreError, match=r"cannot remove .*/hami-gpu\.json: Read-only file system"):
        Store(tmp_path, "hami-", full("unlink", errno.EROFS)).sync({})

    assert content(tmp_path) == {"hami-gpu.json": OLD}


def test_nothing_is_made_where_nothing_is_wanted(tmp_path):
    assert Store(tmp_path / "cdi", "hami-").sync({}) == Changes()
    assert content(tmp_path) == {}


@pytest.mark.parametrize("name", ["gpu.json", "hami-gpu.yml", "hami-../gpu.json", "hami-gpu"])
def test_a_name_that_would_not_be_ours_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="is not a spec of this store"):
        Store(tmp_path, "hami-").write(name, OLD)


@pytest.mark.parametrize("prefix", ["", ".hami", "a/b"])
def test_a_prefix_that_could_take_more_than_what_is_ours_is_refused(tmp_path, prefix):
    with pytest.raises(ValueError, match="must be the start of a file name"):
        Store(tmp_path, prefix)


def test_every_call_that_changes_something_can_be_made_to_fail():
    assert {field.name for field in fields(Calls)} == {*STEPS, "mkdir", "unlink"}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.scenario("H1")
def test_a_disk_that_is_full_keeps_the_old_spec_and_heals_when_there_is_room(tmp_path):
    """A real one: its own mount namespace, a tmpfs of 64 KiB, and a file that takes the rest."""
    script = f"""
import os
from pathlib import Path
from cdi.errors import StoreError
from cdi.store import Store
directory = Path({str(tmp_path)!r})
store = Store(directory, "hami-")
store.write("hami-gpu.json", "old")
with (directory / "filler").open("wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError as error:
        print(error.strerror)
try:
    store.write("hami-gpu.json", "new")
except StoreError as error:
    print(error)
print(sorted(os.listdir(directory)), (directory / "hami-gpu.json").read_text())
(directory / "filler").unlink()
print(store.write("hami-gpu.json", "new"), (directory / "hami-gpu.json").read_text())
"""
    mounted = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=64k none "{tmp_path}" && exec {sys.executable} -']
    done = subprocess.run(
        mounted,
        check=False,
        input=script,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")

    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "No space left on device",
        f"cannot write {tmp_path}/hami-gpu.json: No space left on device; free space on its file system",
        "['filler', 'hami-gpu.json'] old",
        "True new",
    ]


def test_the_name_is_what_a_registry_finds(tmp_path):
    Store(tmp_path, "hami-").sync({"hami-gpu.json": NEW})

    (definition,) = load([tmp_path]).definitions[QualifiedName.parse("example.com/gpu=gpu1")]

    assert definition.source.file == str(tmp_path / "hami-gpu.json")
