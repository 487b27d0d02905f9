"""The init container's own script, in a real shell on real directories: what running pods have is never touched."""

import hashlib
import mmap
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
NAME = "libvgpu.so.v2.10.0"
OLD, NEW = b"old" * 5000, b"new" * 5000
TOOLS = ("cp", "sync", "mv", "ln", "rm", "rmdir", "cmp", "sha256sum", "readlink")


class Node:
    """HAMi-core's directory on a host, and the image that the script copies from."""

    def __init__(self, folder):
        documents = yaml.safe_load_all((ROOT / "daemonset.yaml").read_text(encoding="utf-8"))
        (pod,) = (d["spec"]["template"]["spec"] for d in documents if d["kind"] == "DaemonSet")
        (installer,) = pod["initContainers"]
        self.command = [*installer["command"], *installer["args"]]
        self.source, self.target = folder / "source", folder / "target"
        self.source.mkdir()
        self.target.mkdir()

    def image(self, content, name=NAME):
        (self.source / name).write_bytes(content)

    def environment(self, *before):
        path = ":".join([*map(str, before), os.environ["PATH"]])
        return {"PATH": path, "SOURCE": str(self.source), "TARGET": str(self.target)}

    def install(self, *before):
        """The exit status. ``before``: folders of tools that are found first."""
        environment = self.environment(*before)
        return subprocess.run(self.command, env=environment, check=False, timeout=20, capture_output=True).returncode

    @property
    def preload(self):
        """The daemon mounts the library where it is on the host, and that is what programs must look for."""
        return f"{self.target}/libvgpu.so\n"

    @property
    def files(self):
        return {path.name: path for path in self.target.iterdir() if not path.name.startswith(".")}


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    made.image(OLD)
    return made


def content_name(content):
    return f"libvgpu.so.{hashlib.sha256(content).hexdigest()[:16]}"


def test_a_library_is_kept_under_its_content_and_linked_within_the_directory(node):
    assert node.install() == 0

    assert set(node.files) == {NAME, content_name(OLD), "ld.so.preload"}
    assert str(node.files[NAME].readlink()) == content_name(OLD)
    assert node.files[NAME].read_bytes() == OLD
    assert node.files["ld.so.preload"].read_text() == node.preload


def test_a_second_run_touches_nothing(node):
    node.install()
    before = {name: path.lstat() for name, path in node.files.items()}

    assert node.install() == 0

    after = {name: path.lstat() for name, path in node.files.items()}
    assert {n: (s.st_ino, s.st_mtime_ns) for n, s in after.items()} == {
        n: (s.st_ino, s.st_mtime_ns) for n, s in before.items()
    }


def test_an_upgrade_leaves_what_a_process_has_mapped(node):
    node.install()
    with node.files[NAME].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        node.image(NEW)

        assert node.install() == 0

        assert mapped[:] == OLD
        assert node.files[NAME].read_bytes() == NEW
        assert node.files[content_name(OLD)].read_bytes() == OLD


def test_a_downgrade_swaps_the_link_back_to_the_file_that_is_there(node):
    node.install()
    first = node.files[content_name(OLD)].stat().st_ino
    node.image(NEW)
    node.install()
    node.image(OLD)

    assert node.install() == 0

    assert node.files[NAME].read_bytes() == OLD
    assert node.files[NAME].stat().st_ino == first


def test_a_bind_mount_of_the_name_is_the_file_of_its_time(node, tmp_path):
    """A container's mount, as a runtime makes it: the link is followed when it is mounted."""
    node.install()
    container = tmp_path / "container.so"
    container.touch()
    node.image(NEW)
    script = f"""
        set -e
        mount --bind {node.target / NAME} {container}
        /bin/sh -c "$SCRIPT"
        cmp {container} {node.target / content_name(OLD)}
        touch {container}.later
        mount --bind {node.target / NAME} {container}.later
        cmp {container}.later {node.target / content_name(NEW)}
    """
    probe = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True, timeout=20)
    if probe.returncode:
        pytest.skip(f"no mount namespace here: {probe.stderr.decode().strip()}")

    environment = {**node.environment(), "SCRIPT": node.command[-1]}
    subprocess.run(["unshare", "--mount", "sh", "-c", script], env=environment, check=True, timeout=20)


def test_a_file_of_an_older_installation_gives_way_and_stays_mapped(node):
    (node.target / NAME).write_bytes(b"older")
    with (node.target / NAME).open("rb") as mapped:
        assert node.install() == 0

        assert mapped.read() == b"older"
    assert node.files[NAME].is_symlink()


def test_directories_that_a_runtime_left_in_place_of_files_give_way(node):
    node.image(OLD, "libvgpu.so")
    for name in ("libvgpu.so", NAME, "ld.so.preload"):
        (node.target / name).mkdir()

    assert node.install() == 0

    assert node.files["libvgpu.so"].read_bytes() == OLD
    assert node.files["ld.so.preload"].read_text() == node.preload


def test_a_file_that_a_lost_disk_write_left_torn_is_made_whole(node):
    node.install()
    node.files[content_name(OLD)].write_bytes(OLD[:100])

    assert node.install() == 0

    assert node.files[NAME].read_bytes() == OLD


def test_other_files_come_along_with_their_modes_and_folders_do_not(node):
    node.image(b"program", "vgpuvalidator")
    (node.source / "vgpuvalidator").chmod(0o755)
    (node.source / "folder").mkdir()

    assert node.install() == 0

    assert node.files["vgpuvalidator"].stat().st_mode & 0o777 == 0o755
    assert "folder" not in node.files


def test_an_image_that_has_a_preload_file_does_not_decide_what_is_preloaded(node):
    node.image(b"/elsewhere\n", "ld.so.preload")

    assert node.install() == 0

    assert node.files["ld.so.preload"].read_text() == node.preload


def killing(folder, at, *, after):
    """Tools that kill the shell at their call number ``at``, before or after they have done it."""
    folder.mkdir()
    counter = folder / "calls"
    counter.write_text("")
    for tool in TOOLS:
        real = shutil.which(tool)
        run = [f'"{real}" "$@"', "status=$?"]
        kill = [f'[ "$(wc -l < {counter})" -ne {at} ] || kill -9 $PPID']
        body = [f"echo >> {counter}", *(run + kill if after else kill + run), "exit $status"]
        (folder / tool).write_text("#!/bin/sh\n" + "\n".join(body) + "\n")
        (folder / tool).chmod(0o755)
    return folder


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_call_it_leaves_whole_files_and_the_next_run_ends_well(node, tmp_path, after):
    node.install()
    node.image(NEW)
    kills, state = 0, tmp_path / "state"
    shutil.copytree(node.target, state, symlinks=True)
    for at in range(1, 60):
        shutil.rmtree(node.target)
        shutil.copytree(state, node.target, symlinks=True)

        tools = killing(tmp_path / f"tools-{at}", at, after=after)

        status = node.install(tools)

        assert node.files[NAME].read_bytes() in (OLD, NEW)
        assert node.files["ld.so.preload"].read_text() == node.preload
        assert node.install() == 0
        assert node.files[NAME].read_bytes() == NEW
        if len((tools / "calls").read_text()) < at:
            break
        kills += 1
    assert status == 0
    assert kills > 10


def test_two_at_once_do_not_disturb_each_other(node):
    node.image(NEW, "libvgpu.so")
    running = [subprocess.Popen(node.command, env=node.environment()) for _ in range(4)]

    assert [process.wait(timeout=30) for process in running] == [0] * 4
    assert node.files[NAME].read_bytes() == OLD
    assert node.files["libvgpu.so"].read_bytes() == NEW
    assert not [path for path in node.target.iterdir() if path.name in (".new", ".preload")]


def test_a_directory_that_cannot_be_written_is_an_error(node):
    shutil.rmtree(node.target)

    assert node.install() != 0
