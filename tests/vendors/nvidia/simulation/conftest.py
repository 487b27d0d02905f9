"""A machine by name, a simulation of it, the real binding over that simulation, and an injector in another process."""

import ctypes
import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pynvml
import pytest
import yaml

from hami_plugin.model.machine import machine as parse
from vendors.nvidia.simulation import records, simulate

_INJECTOR = """
import json, sys
from pathlib import Path
from vendors.nvidia.simulation import NvmlSimulator
for line in sys.stdin:
    directory, fault, device, value = json.loads(line)
    try:
        NvmlSimulator.attach(Path(directory)).inject(fault, device, value)
        answer = ""
    except Exception as error:
        answer = repr(error)
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="session")
def machine():
    """Reads a profile by name."""

    def read(name):
        text = (files("hami_plugin.simulation") / "profiles" / f"{name}.yaml").read_text(encoding="utf-8")
        return parse(yaml.load(text, Loader=yaml.CSafeLoader))

    return read


@pytest.fixture(scope="session")
def table():
    """Reads a MIG table by name."""

    def read(name):
        return records.load_tables()[name]

    return read


@pytest.fixture
def simulated(machine, tmp_path):
    """Simulates a machine by profile name, in the test's own folder."""
    return lambda name: simulate(machine(name), tmp_path / "machine")


def _point_binding_at(library):
    """The binding keeps the library and each function it has looked up; both must go before another one serves."""
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml._nvmlLib_refcount = 0


@pytest.fixture
def load():
    """Points the real binding at a simulator's library, without an init."""
    shutdowns = []

    def use(simulator):
        library = ctypes.CDLL(simulator.settings()["nvmlLibrary"])
        _point_binding_at(library)
        shutdowns.append(library.nvmlShutdown)
        return pynvml

    yield use
    for shutdown in shutdowns:
        while shutdown() == 0:
            pass
    _point_binding_at(None)


@pytest.fixture
def nvml(simulated, load):
    """A simulator by profile name, and the binding with an open session over it."""

    def start(name):
        simulator = simulated(name)
        binding = load(simulator)
        binding.nvmlInit()
        return simulator, binding

    return start


@pytest.fixture(scope="session")
def _injector():
    root = Path(__file__).parents[4]
    command = [sys.executable, "-c", _INJECTOR]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()
        process.wait(10)


@pytest.fixture
def elsewhere(_injector):
    """Causes a fault from another process."""

    def inject(simulator, fault, device=None, value=0):
        _injector.stdin.write(json.dumps([str(simulator.directory), fault, device, value]) + "\n")
        _injector.stdin.flush()
        answer = json.loads(_injector.stdout.readline())
        assert not answer, answer

    return inject


@pytest.fixture
def code():
    """The return code that a call of the binding ends with; 0 for success."""

    def of(call, *arguments):
        try:
            call(*arguments)
        except pynvml.NVMLError as error:
            return error.value
        return 0

    return of
