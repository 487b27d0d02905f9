"""The traced ways: what a call is, and that each way can be taken."""

import asyncio
import threading

import pytest

from tools import ways

CODE = """
import asyncio
from dataclasses import dataclass

@dataclass
class Value:
    number: int

class Thing:
    def get(self):
        return sum(one for one in [n for n in (1, 2)])

async def inner():
    await asyncio.sleep(0)

async def Allocate():
    await inner()
    await inner()
    return (lambda: Thing().get() + Value(1).number)()

def numbers():
    yield 1
    yield 2

def outside():
    return list(numbers())
"""


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Run what is given to it under a recorder, with ``CODE`` as the only code of the project's."""
    monkeypatch.setattr(ways, "ROOT", tmp_path)
    path = tmp_path / "cdi/thing.py"
    path.parent.mkdir()
    namespace = {"__name__": "thing"}
    exec(compile(CODE, path, "exec"), namespace)

    def run(work):
        recorder = ways.Recorder()
        recorder.start()
        try:
            work(namespace)
        finally:
            threading.setprofile(None)
            recorder.write(tmp_path / "calls")
        return ways._read(tmp_path / "calls")

    return run


def entered(calls):
    return [(call.file, call.function) for call in calls if not call.returned]


def test_a_call_is_the_entry_of_a_named_function_and_nothing_else(recorded):
    calls = recorded(lambda own: [asyncio.run(own["Allocate"]()), own["outside"]()])

    names = ["Allocate", "inner", "inner", "Thing.get", "outside", "numbers"]
    assert entered(calls) == [("cdi/thing.py", name) for name in names]


def test_a_request_is_what_its_own_task_and_threads_do_until_it_returns(recorded):
    async def serve(own):
        async def beside():
            while True:
                own["outside"]()
                await asyncio.sleep(0)

        async def request():
            await asyncio.to_thread(own["outside"])
            await own["Allocate"]()
            own["outside"]()

        task = asyncio.create_task(beside())
        await asyncio.sleep(0)
        await asyncio.create_task(request())
        task.cancel()

    calls = recorded(lambda own: asyncio.run(serve(own)))
    (span,) = ways._method(calls, "Allocate")
    (taken,) = ways._requests(calls, [span])

    assert len(ways._within(calls, span)) > len(taken)
    assert [call.function for call in taken] == ["Allocate", "inner", "inner", "Thing.get"]


@pytest.mark.e2e
@pytest.mark.full
def test_each_way_can_be_taken():
    taken = ways.measure(rounds=1)

    assert set(taken) == {"allocate", "fault", "filter", "bind"}
    for way in taken.values():
        assert 1 < way.files <= way.functions <= way.calls
        assert way.files - 1 <= way.changes < way.calls
