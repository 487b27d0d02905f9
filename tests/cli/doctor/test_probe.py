"""``hami-plugin doctor POD --probe``: an allocation beyond the limit, by C stand-ins for driver and HAMi-core."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from hami_plugin.cli.doctor.findings import Mark, Unavailable
from hami_plugin.cli.doctor.probe import Probed, isolation
from hami_plugin.cli.main import main
from tests.cli.doctor.sick import patient
from tests.cli.doctor.test_pod import running

HERE = Path(__file__).parent / "stand_in"
LIMIT_MIB = 3000
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Container:
    """What programs in the container find, and the kubectl that runs them there."""

    libraries: Path
    limiter: Path
    commands: Path

    def kubectl(self, script: str) -> None:
        file = self.commands / "kubectl"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def runs(self, **environment: str) -> None:
        """``kubectl … -- COMMAND`` runs the command with this environment."""
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        python = shlex.quote(sys.executable)
        self.kubectl(
            'while [ "$1" != "--" ]; do shift; done; shift 2\n'
            f'exec env LD_LIBRARY_PATH={self.libraries} {words} {python} "$@"'
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Container:
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("container")
    places = {"cuda.c": folder / "libcuda.so.1", "limiter.c": folder / "vgpu" / "libvgpu.so"}
    for source, target in places.items():
        target.parent.mkdir(exist_ok=True)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(target), str(HERE / source), "-ldl"],
            check=True,
            timeout=60,
        )
    commands = folder / "commands"
    commands.mkdir()
    return Container(libraries=folder, limiter=places["limiter.c"], commands=commands)


async def probe(built: Container) -> tuple[int, str]:
    """The command itself, beside a pod that has its devices."""
    import asyncio  # noqa: PLC0415  # the runner has a loop of its own

    async with patient() as one:
        running(one)
        words = ["doctor", "demo/busy", "--probe", "--kubeconfig", str(one.options["kubeconfig"])]
        path = f"{built.commands}{os.pathsep}{os.environ['PATH']}"
        done = await asyncio.to_thread(CliRunner().invoke, main, words, env={"PATH": path})
        return done.exit_code, done.output


def lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if "isolation" in line]


async def test_an_allocation_beyond_the_limit_that_the_limiter_refuses_is_the_proof(built: Container) -> None:
    built.runs(LD_PRELOAD=str(built.limiter), CUDA_DEVICE_MEMORY_LIMIT_0=f"{LIMIT_MIB}m")

    _code, output = await probe(built)

    (line,) = lines(output)
    assert line.startswith("✓ isolation of main: device 0: 3064 MiB, where 3000 MiB are allowed, were refused by the")
    assert "a static program, or a removed preload, would go round it" in line


async def test_a_removed_preload_lets_the_allocation_pass_and_is_named(built: Container) -> None:
    built.runs(CUDA_DEVICE_MEMORY_LIMIT_0=f"{LIMIT_MIB}m")

    code, output = await probe(built)

    (line,) = lines(output)
    assert code == 1
    assert line.startswith("✗ isolation of main")
    assert "were allocated: no limiter is loaded in its programs" in line
    assert "/etc/ld.so.preload" in output


async def test_a_limiter_that_is_switched_off_is_told_from_one_that_is_not_there(built: Container) -> None:
    built.runs(LD_PRELOAD=str(built.limiter), CUDA_DEVICE_MEMORY_LIMIT_0="0")

    code, output = await probe(built)

    assert code == 1
    assert "the limiter is loaded and has not refused it" in lines(output)[0]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'exec: \"python3\": executable file not found in $PATH' >&2; exit 126", "the container has no Python"),
        ('echo \'pods "busy" is forbidden: cannot create resource "pods/exec"\' >&2; exit 1', "is forbidden"),
        ("echo hami-plugin-probe nonsense", "the probe has told nothing"),
        ("exec env LD_LIBRARY_PATH=/nowhere true", "nothing was printed"),
    ],
)
async def test_what_cannot_be_tried_is_said_and_proves_nothing(built: Container, script: str, says: str) -> None:
    built.kubectl(script)

    _code, output = await probe(built)

    (line,) = lines(output)
    assert line.startswith("! isolation of main")
    assert says in line


def found(**device: object) -> tuple[Mark, str]:
    answer = {"preload": ["/usr/local/vgpu/libvgpu.so"], "devices": [{"device": 0, "limit": 1000 * MIB, **device}]}
    (one,) = isolation(Probed(container="main", limits=(1000 * MIB,), answer=json.loads(json.dumps(answer))))
    return one.mark, one.text


def test_a_card_that_is_full_refuses_too_and_is_no_proof() -> None:
    mark, text = found(asked=1064 * MIB, code=2, total=80_000 * MIB)

    assert mark is Mark.FAILED
    assert "not by a limiter: the program sees 80000 MiB" in text


def test_a_share_that_is_used_up_leaves_nothing_to_try() -> None:
    mark, text = found(failed="cuMemAlloc_v2 of 1 MiB", code=2)

    assert (mark, text) == (Mark.WARNING, "device 0 was not tried: cuMemAlloc_v2 of 1 MiB answers 2")


def test_a_container_without_the_driver_is_not_tried() -> None:
    (one,) = isolation(Probed(container="main", limits=(MIB,), answer={"problem": "libcuda.so.1: cannot open"}))

    assert one.mark is Mark.WARNING
    (one,) = isolation(Probed(container="main", limits=(MIB,), answer=Unavailable(text="away", remedy="wait")))
    assert (one.text, one.remedy) == ("away", "wait")
