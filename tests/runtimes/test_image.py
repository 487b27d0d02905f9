"""The project's own image: what is in it, that it is the same twice, and what any user may do with it."""

import io
import json
import os
import re
import tarfile
from pathlib import Path

import pytest

from hami_plugin import __version__
from tests.runtimes import image as images
from tests.runtimes import project_image
from tests.support.locks import named, pins
from tools.image import application, build, debian
from tools.image.application import HOME, LOCK, SITE
from tools.image.build import BILL, Kind
from tools.image.builder import DEBIANS

MOST = 150_000_000
PYTHON = f"/{HOME}/bin/python"
UNWANTED = re.compile(
    r"(^|/)(sh|bash|dash|busybox|pip|pip3|gcc|cc|ld|make|perl|apt|apt-get|dpkg|env|su|curl|wget|git)(-?[\d.]+)?$"
)
OWN = f"docker.io/library/{project_image.NAME}"
BASED, BARE = "localhost/based:1", "localhost/python:3.11"


class Archive:
    """An OCI archive: its manifest's digest, its configuration, and its layers, unpacked in memory."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as opened:
            blobs = {name: opened.extractfile(name).read() for name in opened.getnames() if name.count("/") == 2}
            (entry,) = json.load(opened.extractfile("index.json"))["manifests"]

        def blob(digest: str) -> bytes:
            return blobs[f"blobs/{digest.replace(':', '/')}"]

        self.digest = entry["digest"]
        manifest = json.loads(blob(self.digest))
        self.config = json.loads(blob(manifest["config"]["digest"]))
        self.layers = [
            tarfile.open(fileobj=io.BytesIO(blob(one["digest"])))  # noqa: SIM115  # in memory
            for one in manifest["layers"]
        ]

    def members(self):
        return {one.name.removeprefix("./").rstrip("/"): one for layer in self.layers for one in layer.getmembers()}

    def read(self, name: str) -> bytes:
        for layer in self.layers:
            if name in layer.getnames():
                return layer.extractfile(name).read()
        raise AssertionError(f"no {name} in the image")


@pytest.fixture(scope="module")
def file(present):
    return present(lambda: project_image.archive(lambda _line: None))


@pytest.fixture(scope="module")
def archive(file):
    return Archive(file)


@pytest.fixture(scope="module")
def run(podman, enclosure, file):
    """Run a container of the image as a user without a name, on a read-only root; ``tmp`` mounts /tmp."""
    enclosure.write("/var/tmp/own.tar", file.read_bytes())
    podman.load("/var/tmp/own.tar")

    def call(*command, options=(), tmp=False, image=OWN):
        looks = ("--user=12345:12345", "--read-only", f"--read-only-tmpfs={str(tmp).lower()}")
        return podman.command(*looks, *options, image, *command)

    return call


def python(run, program, **more):
    done = run("-c", program, options=(f"--entrypoint={PYTHON}",), **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [("--version",), ("version",), ("vendors",), ("run", "--help")])
def test_any_user_may_look_where_nothing_can_be_written(run, command):
    done = run(*command)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("machine", ["dgx-h100", "ascend-910b3-8", "metax-c500-8", "aws-trn2-48xlarge"])
def test_any_user_may_simulate_a_machine_without_compiler_and_shell(run, machine):
    shown = run("topology", "--simulate", machine, tmp=True)
    listed = run("discover", "--simulate", machine, tmp=True)

    assert (shown.returncode, shown.stderr) == (0, "")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert len(listed.stdout.splitlines()) >= 8


def test_any_user_may_ask_whether_a_pod_fits(run, enclosure):
    pod = Path(build.ROOT, "docs/examples/fit/pod.yaml").read_text()
    enclosure.write("/mnt/pod.yaml", pod)
    mounted = ("--volume=/mnt/pod.yaml:/pod.yaml:ro",)

    done = run("fit", "/pod.yaml", "--profile", "dgx-h100", options=mounted, tmp=True)

    assert done.returncode in (0, 1), done.stderr
    assert "dgx-h100" in done.stdout


def test_it_is_small(archive):
    assert sum(one.size for one in archive.members().values()) < MOST


def test_it_has_no_shell_no_package_manager_and_no_compiler(run, archive):
    files = [name for name, one in archive.members().items() if not one.isdir() and not name.startswith(SITE)]

    assert [name for name in files if UNWANTED.search(name)] == []
    assert sorted(name for name in files if name.startswith(("bin/", "sbin/", "usr/bin/", "usr/sbin/"))) == [
        "usr/bin/python3.11"
    ]
    for absent in ("pip", "ensurepip", "setuptools", "venv"):
        assert python(run, f"import importlib.util as u; print(u.find_spec({absent!r}))") == "None\n"


def test_nobody_but_root_may_change_it_and_nothing_runs_as_somebody_else(archive):
    files = {name: one for name, one in archive.members().items() if not one.issym()}

    assert {(one.uid, one.gid) for one in files.values()} == {(0, 0)}
    assert {name for name, one in files.items() if one.mode & 0o002} == {"tmp", "var/lock", "var/tmp"}
    assert [name for name, one in files.items() if one.mode & 0o6000 and not one.isdir()] == []
    assert [name for name, one in files.items() if one.isreg() and not one.mode & 0o004] == []


def test_its_labels_say_what_it_is_and_where_it_comes_from(archive):
    labels = {
        name.removeprefix("org.opencontainers.image."): text
        for name, text in archive.config["config"]["Labels"].items()
    }

    assert (labels["title"], labels["version"], labels["licenses"]) == ("hami-plugin", __version__, "Apache-2.0")
    assert re.fullmatch(r"[0-9a-f]{40}(-changed)?", labels["revision"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", labels["created"])
    assert "base.name" not in labels


def test_its_bill_of_materials_names_every_package(archive, file):
    inside = archive.read(BILL)
    bill = json.loads(inside)
    named_there = {one["purl"].split("@")[0]: one for one in bill["components"]}
    distributions = {re.match(rf"{SITE}/(.+?)-[^-/]+\.dist-info/METADATA$", name) for name in archive.members()}
    status = [name for name in archive.members() if name.startswith("var/lib/dpkg/status.d/")]

    assert inside == next(file.parent.glob("*.cdx.json")).read_bytes()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert {f"pkg:deb/debian/{name.rpartition('/')[2]}" for name in status} == {
        f"pkg:deb/debian/{name}" for name in debian.PACKAGES.alone
    }
    wanted = {f"pkg:deb/debian/{name}" for name in debian.PACKAGES.alone} | {
        f"pkg:pypi/{named(found[1])}" for found in distributions if found
    }
    assert named_there.keys() == wanted
    assert {name: named_there[f"pkg:pypi/{name}"]["version"] for name in pins(LOCK)} == {
        name: pin.version for name, pin in pins(LOCK).items()
    }
    assert [one["purl"] for one in bill["components"] if "pypi" in one["purl"] and not one.get("licenses")] == []


@pytest.mark.full
def test_another_build_of_the_same_sources_is_the_same_image(file, archive, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    before = os.umask(0o077)
    try:
        again = build.made(Kind(name=project_image.NAME), tmp_path, build.cache(), lambda _line: None, tool=DEBIANS)
    finally:
        os.umask(before)

    assert again.digest == archive.digest
    assert again.bill.read_bytes() == next(file.parent.glob("*.cdx.json")).read_bytes()


def test_all_that_is_compiled_loads_with_the_libraries_of_the_image(run, archive):
    """Extension modules are named by their files; what they need would be missed only when somebody calls it."""
    places = [name for name in archive.members() if name.endswith(".so")]
    modules = [
        re.sub(r"(\.cpython-\w+-[\w-]+|\.abi3)?\.so$", "", name.split("/lib-dynload/")[-1].removeprefix(f"{SITE}/"))
        for name in places
        if "/lib-dynload/" in name or name.startswith(SITE)
    ]
    program = (
        "import importlib, sys\n"
        f"for name in {[name.replace('/', '.') for name in modules]!r}:\n"
        "    try: importlib.import_module(name)\n"
        "    except Exception as error: print(name, error)\n"
    )

    assert len(modules) > 50
    assert python(run, program) == ""


def test_nothing_that_is_loaded_was_compiled_at_the_start(run):
    program = (
        "import os, sys, hami_plugin.cli, hami_plugin.daemon.app\n"
        "files = [m.__cached__ for m in list(sys.modules.values()) if getattr(m, '__cached__', None)]\n"
        "print(len(files) > 300, [f for f in files if not os.path.exists(f)])"
    )

    assert python(run, program) == "True []\n"


@pytest.mark.full
def test_a_base_of_another_name_gets_the_project_alone(present, run, archive, podman, enclosure, tmp_path):
    """The base has Debian's Python and nothing else: the first layer, which it is made of."""
    out = tmp_path / "base.tar"
    layer = archive.layers[0]
    layer.fileobj.seek(0)
    out.write_bytes(images.packed(BARE, layer.fileobj.read(), {}))
    kind = Kind(name=BASED, base=f"oci-archive:{out}", python="/usr/bin/python3.11")

    made = present(lambda: build.made(kind, tmp_path / "based", build.cache(), lambda _line: None, tool=DEBIANS))
    enclosure.write("/var/tmp/based.tar", made.archive.read_bytes())
    podman.load("/var/tmp/based.tar")
    found = Archive(made.archive)

    assert len(found.layers) == 4
    assert found.config["config"]["Labels"]["org.opencontainers.image.base.name"] == kind.base
    assert "pkg:deb" not in made.bill.read_text()
    assert run("--version", image=BASED).stdout == run("--version").stdout != ""


def test_credential_plugins_work_without_what_is_left_out_of_the_kubernetes_package(run, archive, enclosure):
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    answer = json.dumps({**credential, "status": {"token": "from the plugin"}})
    command = {"command": PYTHON, "args": ["-c", f"print({answer!r})"], "interactiveMode": "Never"}
    kubeconfig = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example"}}],
        "users": [{"name": "u", "user": {"exec": {"apiVersion": credential["apiVersion"], **command}}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    enclosure.write("/mnt/kubeconfig", json.dumps(kubeconfig))
    program = (
        "import asyncio; from hami_plugin.cluster.credentials import of_kubeconfig\n"
        "print(asyncio.run(of_kubeconfig('/kubeconfig')).authorization)"
    )
    options = (f"--entrypoint={PYTHON}", "--volume=/mnt/kubeconfig:/kubeconfig:ro")

    done = run("-c", program, options=options)

    assert (done.stdout, done.returncode) == ("Bearer from the plugin\n", 0), done.stderr
    generated = [name for name in archive.members() if re.search(rf"{SITE}/kubernetes/.*/(api|models)/\w+\.py$", name)]
    assert {Path(name).name for name in generated} == {"__init__.py"}
    assert len(generated) == 2 * len(application.GENERATED)
