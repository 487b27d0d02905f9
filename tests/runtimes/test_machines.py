"""Whole machines: the specs that `hami-plugin cdi generate` writes for them, in the hands of real runtimes."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from cdi.inject import HostNode, inject
from cdi.store import load
from hami_plugin.cli import main
from tests.runtimes.inside import Inside
from tests.runtimes.machines import MACHINES, NODE, Machine
from tests.runtimes.simulated import prepare
from tests.runtimes.wanted import RefusedError, Wanted

DIRECTORY = "/var/run/cdi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A machine, the folder with its files, and its spec as the command wrote it."""

    machine: Machine
    folder: Path
    file: str
    document: dict

    def names(self, devices) -> tuple[str, ...]:
        return tuple(f"{self.machine.kind}={device}" for device in devices)


def command(*words: str) -> str:
    """Run ``hami-plugin`` and return what it prints."""
    done = CliRunner(env={"NODE_NAME": NODE}).invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="session")
def simulations(shown, enclosure):
    """Set a machine up, once."""
    made: dict[str, Simulated] = {}

    def of(machine: Machine) -> Simulated:
        if machine.profile not in made:
            made[machine.profile] = simulation(machine, shown / machine.profile, shown / f"{machine.profile}.specs")
        return made[machine.profile]

    return of


def simulation(machine: Machine, folder: Path, specs: Path) -> Simulated:
    specs.mkdir()
    words = ("--simulate", machine.profile, "--simulation-dir", str(folder), "--output", str(specs))
    command("cdi", "generate", *words)
    prepare(folder, machine.nodes)
    (file,) = specs.iterdir()
    return Simulated(machine=machine, folder=folder, file=file.name, document=json.loads(file.read_text()))


@pytest.fixture(scope="session")
def simulated(request, simulations) -> Simulated:
    return simulations(request.param)


@pytest.fixture
def placed(simulated, put) -> Simulated:
    """The machine, with its spec where the runtimes look."""
    put(simulated.document, f"{DIRECTORY}/{simulated.file}")
    return simulated


each_machine = pytest.mark.parametrize(
    "simulated", MACHINES, ids=[machine.profile for machine in MACHINES], indirect=True, scope="session"
)
each_request = pytest.mark.parametrize(
    ("simulated", "asked"),
    [(machine, asked) for machine in MACHINES for asked in machine.asked],
    ids=[f"{machine.profile} {'+'.join(asked)}" for machine in MACHINES for asked in machine.asked],
    indirect=["simulated"],
    scope="session",
)


def numbers(inside: Inside):
    return {path: (node.major, node.minor) for path, node in inside.devices.items()}


@each_request
def test_a_container_has_what_the_device_it_asked_for_has_and_nothing_of_another(runtime, placed, asked):
    machine = placed.machine

    inside = runtime.run(*placed.names(asked), wanted=Wanted(read=machine.readable))

    assert inside.env == machine.env
    assert numbers(inside) == machine.received(asked)
    assert not any(node.block for node in inside.devices.values())
    assert {path: mount.source for path, mount in inside.mounts.items()} == {
        path: f"{source_of(placed.folder)}/{source}" for path, source in machine.mounts.items()
    }
    assert all({"ro", "nosuid", "nodev"} <= mount.options for mount in inside.mounts.values())
    assert inside.files.keys() == set(machine.readable)
    assert inside.groups == frozenset()


def source_of(folder: Path) -> str:
    """A folder's path within the file system that it lies in, which is what a mount's source is."""
    within = next(place for place in (folder, *folder.parents) if place.is_mount())
    mounts = Path("/proc/self/mountinfo").read_text()
    *_, root = re.findall(rf"^\d+ \d+ \S+ (\S+) {re.escape(str(within))} ", mounts, re.MULTILINE)
    return str(Path(root) / folder.relative_to(within))


@each_machine
def test_a_device_that_the_machine_has_not_fails_the_container_in_the_runtimes_own_words(way, placed):
    first = placed.machine.asked[0]

    with pytest.raises(RefusedError, match=f"unresolvable CDI devices (.*, )?{placed.machine.kind}=404"):
        way.run(*placed.names((*first, "404")))


@pytest.fixture(scope="session")
def bare_configuration(containerd):
    return containerd.configuration(Wanted())


@each_request
def test_containerd_makes_the_configuration_that_resolve_prints_and_our_library_makes(
    containerd, bare_configuration, enclosure, placed, asked
):
    names = placed.names(asked)

    given = containerd.configuration(Wanted(cdi=names))

    printed = yaml.safe_load(command("cdi", "resolve", *names, "--dir", str(enclosure.path(DIRECTORY))))
    added = {mount["destination"] for mount in given["mounts"]}
    added -= {mount["destination"] for mount in bare_configuration["mounts"]}
    assert set(printed.get("env", ())) == set(given["process"]["env"]) - set(bare_configuration["process"]["env"])
    assert {node["path"] for node in printed["deviceNodes"]} == {node["path"] for node in given["linux"]["devices"]}
    assert {(mount["containerPath"], mount["hostPath"], *mount["options"]) for mount in printed.get("mounts", ())} == {
        (mount["destination"], mount["source"], *mount["options"])
        for mount in given["mounts"]
        if mount["destination"] in added
    }
    ours = inject(load([enclosure.path(DIRECTORY)]).resolve(names), bare_configuration, node_of)
    assert decisive(ours) == decisive(given)


def node_of(path: str) -> HostNode:
    rdev = Path(path).stat().st_rdev
    return HostNode(type="c", major=os.major(rdev), minor=os.minor(rdev))


def decisive(configuration):
    """What CDI can change. Nodes and mounts that are given twice, or are equally deep, may stand in another order."""
    process, linux = configuration["process"], configuration["linux"]
    return {
        "env": process["env"],
        "groups": process["user"].get("additionalGids"),
        "devices": sorted(linux.get("devices", ()), key=lambda node: node["path"]),
        "rules": {tuple(sorted(rule.items())) for rule in linux["resources"]["devices"]},
        "mounts": sorted(configuration["mounts"], key=lambda mount: mount["destination"]),
        "depths": [mount["destination"].count("/") for mount in configuration["mounts"]],
        "hooks": configuration.get("hooks"),
    }
