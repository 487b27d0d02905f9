"""Real runtimes, installed by the project's own script, in an enclosure of their own."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.runtimes import image
from tests.runtimes.containerd import Containerd
from tests.runtimes.enclosure import enclosed
from tests.runtimes.inside import Inside
from tests.runtimes.install import install
from tests.runtimes.podman import Podman
from tests.runtimes.wanted import Runtime, Wanted
from tools.debian.commands import LackingError

ARCHIVES = {name: f"/var/tmp/{number}.tar" for number, name in enumerate(image.VARIABLES)}


@pytest.fixture(scope="session")
def present():
    """Call it with what needs a capable machine; where that lacks something, the test is skipped."""

    def attempt(what: Callable):
        try:
            return what()
        except LackingError as error:
            pytest.skip(f"no real runtimes here: {error}")

    return attempt


@pytest.fixture(scope="session")
def tree(present) -> Path:
    """The root file system with the runtimes' programs."""
    return present(install)


@pytest.fixture(scope="session")
def shown():
    """A directory that the enclosure has under the same path. It is short: sockets are made in it."""
    with TemporaryDirectory(prefix="shown-") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def enclosure(tree, present, shown):
    with ExitStack() as stack:
        running = present(lambda: stack.enter_context(enclosed(tree, shown=shown)))
        for name, archive in ARCHIVES.items():
            running.write(archive, image.archive(tree / "bin" / "busybox", name))
        yield running


@pytest.fixture(scope="session")
def podman(enclosure) -> Podman:
    return Podman(enclosure, *ARCHIVES.values())


@pytest.fixture(scope="session")
def containerd(enclosure):
    with Containerd.serving(enclosure, *ARCHIVES.values()) as serving:
        yield serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A runtime, how it is told the names of CDI devices, and what its containers have in any case."""

    runtime: Runtime
    naming: Callable[[tuple[str, ...]], Mapping[str, object]]
    bare: Inside

    def run(self, *names: str, wanted: Wanted | None = None) -> Inside:
        """Run a container with these devices; return what it has beyond a bare one."""
        return self.runtime.run(replace(wanted or Wanted(), **self.naming(names))).beyond(self.bare)


def by_field(names: tuple[str, ...]) -> Mapping[str, object]:
    return {"cdi": names}


def by_annotation(names: tuple[str, ...]) -> Mapping[str, object]:
    return {"annotations": {"cdi.k8s.io/hami-plugin": ",".join(names)} if names else {}}


WAYS = {
    "podman": ("podman", by_field),
    "containerd's field": ("containerd", by_field),
    "containerd's annotation": ("containerd", by_annotation),
}


@pytest.fixture(scope="session", params=WAYS)
def way(request) -> Way:
    runtime, naming = WAYS[request.param]
    running = request.getfixturevalue(runtime)
    return Way(runtime=running, naming=naming, bare=running.run(Wanted()))


@pytest.fixture(scope="session", params=["podman", "containerd"])
def runtime(request) -> Way:
    """Return each runtime once, told by its own field."""
    running = request.getfixturevalue(request.param)
    return Way(runtime=running, naming=by_field, bare=running.run(Wanted()))


@pytest.fixture
def put(enclosure):
    """Put a CDI spec where the runtimes look; it is taken away after the test."""
    written = []

    def write(document: Mapping[str, object], path: str = "/etc/cdi/test.json") -> None:
        written.append(enclosure.path(path))
        enclosure.write(path, json.dumps(document))

    yield write
    for path in written:
        path.unlink(missing_ok=True)
