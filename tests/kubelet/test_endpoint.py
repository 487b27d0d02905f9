"""An endpoint and a kubelet on real sockets: restarts, losses, refusals, rivals, and the end."""

import asyncio
import json
import os
import shutil
import socket
import stat
import time
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.kubelet.endpoint import (
    Endpoint,
    PluginDirectory,
    StaleRegistration,
    drops_newcomers,
    siblings,
    socket_name,
)
from hami_plugin.kubelet.holders import CheckpointFile
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.model.ports import NullObserver, Offer
from hami_plugin.model.views import NodeView
from hami_plugin.process.concurrency import Backoff, Watched
from hami_plugin.simulation.kubelet import CHECKPOINT, Manners, Rivals

RESOURCE = "example.com/gpu"


def ready(state):
    return state.ready


@pytest.fixture
def plugin(make_plugin):
    return make_plugin()


async def test_it_registers_and_the_kubelet_sees_every_device(site, plugin, observer, until):
    kubelet = await site.kubelet()

    endpoint = await site.endpoint(plugin, observer=observer)
    state = await until(endpoint.state, ready)
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)

    assert (state.registrations, state.streams, state.problem) == (1, 1, "")
    assert observer.states[-1] == endpoint.state.value
    request = kubelet.registrations[0]
    assert (request.version, request.endpoint) == ("v1beta1", "hami-example-gpu.sock")
    assert request.options.pre_start_required


@pytest.mark.scenario("H5")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
async def test_its_socket_is_for_root_alone_and_nothing_else_stays(site, plugin, until, umask, request):
    before = os.umask(umask)
    request.addfinalizer(lambda: os.umask(before))
    endpoint = await site.endpoint(plugin)
    await until(endpoint.state, lambda state: state.serving)

    assert stat.S_IMODE(endpoint.socket.stat().st_mode) == 0o600
    assert [path.name for path in site.directory.iterdir()] == ["hami-example-gpu.sock"]


async def test_nobody_but_root_reaches_its_socket_before_it_has_its_mode(site, plugin, until, monkeypatch):
    folders, chmod = [], Path.chmod

    def noticed(path, mode):
        folders.append(stat.S_IMODE(path.parent.stat().st_mode))
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", noticed)
    endpoint = await site.endpoint(plugin)
    await until(endpoint.state, lambda state: state.serving)

    assert folders == [0o700]


async def test_a_health_change_reaches_the_kubelet(site, plugin, until):
    kubelet = await site.kubelet()
    endpoint = await site.endpoint(plugin)
    await until(endpoint.state, ready)

    plugin.health(b=False)
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 3)
    plugin.health(b=True)
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)


async def test_each_new_kubelet_is_told_of_once_and_before_it_hears_of_us(site, plugin, until):
    kubelet = await site.kubelet()
    told = []
    endpoint = await site.endpoint(plugin, plugins=PluginDirectory(lambda: told.append(len(kubelet.registrations))))
    await until(endpoint.state, ready)

    endpoint.socket.unlink()
    await until(endpoint.state, lambda state: state.registrations == 2 and state.ready)
    await kubelet.restart()
    await until(endpoint.state, lambda state: state.registrations == 3 and state.ready)

    assert told == [0, 2]


@pytest.mark.scenario("K1")
async def test_k1_a_restarted_kubelet_has_us_back_by_the_event_of_its_socket(site, plugin, until, quick):
    kubelet = await site.kubelet()
    never = Backoff(first=3600, cap=3600)
    endpoint = await site.endpoint(plugin, timing=replace(quick, tick=3600, refused=never))
    await until(endpoint.state, ready)

    for _ in range(3):
        before = len(kubelet.registrations)
        await kubelet.restart()
        await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4, within=30)
        assert len(kubelet.registrations) == before + 1
        await until(endpoint.state, ready)


@pytest.mark.scenario("K1")
async def test_k1_a_killed_kubelet_that_comes_back_later_is_found(site, plugin, until):
    kubelet = await site.kubelet()
    endpoint = await site.endpoint(plugin)
    await until(endpoint.state, ready)

    await kubelet.stop(killed=True)
    state = await until(endpoint.state, lambda state: "no kubelet answers" in state.problem)
    assert not state.registered
    await kubelet.start()

    await until(endpoint.state, ready)


@pytest.mark.scenario("K2")
async def test_k2_an_absent_kubelet_is_waited_for(site, plugin, until):
    endpoint = await site.endpoint(plugin)

    state = await until(endpoint.state, lambda state: "there is no" in state.problem)
    assert (state.serving, state.registered, state.ready) == (True, False, False)
    await site.kubelet()

    await until(endpoint.state, ready)


@pytest.mark.scenario("K2")
async def test_k2_a_directory_that_is_not_there_yet_is_waited_for(site, plugin, until):
    site.directory.rmdir()
    endpoint = await site.endpoint(plugin)

    state = await until(endpoint.state, lambda state: "is not a directory" in state.problem)
    assert "kubeletDir" in state.problem
    site.directory.mkdir()
    await site.kubelet()

    await until(endpoint.state, ready)


@pytest.mark.scenario("K3")
async def test_k3_its_own_socket_unlinked_is_served_and_registered_again(site, plugin, until):
    kubelet = await site.kubelet()
    endpoint = await site.endpoint(plugin)
    await until(endpoint.state, ready)

    endpoint.socket.unlink()

    await until(endpoint.state, lambda state: state.ready and state.registrations == 2)
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)


@pytest.mark.scenario("K4")
async def test_k4_a_replaced_directory_is_found_and_watched_again(site, plugin, until):
    kubelet = await site.kubelet()
    watch = DirectoryWatch(site.directory)
    endpoint = await site.endpoint(plugin, watch=watch)
    await until(endpoint.state, ready)

    await kubelet.stop()
    shutil.rmtree(site.directory)
    site.directory.mkdir()
    await kubelet.start()

    await until(endpoint.state, lambda state: state.ready and state.registrations == 2)
    assert watch.armed


@pytest.mark.scenario("K5")
async def test_k5_without_file_events_looking_is_enough(site, plugin, until, capsys):
    def refused():
        raise OSError(24, "inotify instance limit reached")

    kubelet = await site.kubelet()
    endpoint = await site.endpoint(plugin, watch=DirectoryWatch(site.directory, observer=refused))
    await until(endpoint.state, ready)
    await kubelet.restart()
    await until(endpoint.state, lambda state: state.ready and state.registrations == 2)

    assert capsys.readouterr().out.count("file events unavailable") == 1


@pytest.mark.scenario("K6")
async def test_k6_a_second_stream_gets_every_update_and_its_end_changes_nothing(site, plugin, until):
    kubelet = await site.kubelet()
    endpoint = await site.endpoint(plugin)
    await until(endpoint.state, ready)

    second = await kubelet.second_stream(RESOURCE)
    await until(endpoint.state, lambda state: state.streams == 2)
    plugin.health(a=False)
    await kubelet.until(lambda: Offer(id="a", healthy=False, numa=0) in second.offers.value)
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 3)
    await second.close()

    await until(endpoint.state, lambda state: state.streams == 1)
    plugin.health(a=True)
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)
    assert endpoint.state.value.registrations == 1


@pytest.mark.scenario("K8")
async def test_k8_a_refusing_kubelet_is_reported_in_its_own_words_and_asked_again(site, plugin, until):
    kubelet = await site.kubelet(manners=Manners(versions=("v1alpha",)))
    endpoint = await site.endpoint(plugin)

    state = await until(endpoint.state, lambda state: "refuses" in state.problem)
    assert "supports v1alpha" in state.problem
    assert not state.registered
    kubelet.manners = Manners()

    await until(endpoint.state, ready)


@pytest.mark.scenario("K8")
async def test_a_new_kubelet_is_asked_at_once_whatever_the_old_one_said(site, plugin, until, quick):
    kubelet = await site.kubelet(manners=Manners(versions=("v1alpha",)))
    patient = replace(quick, refused=Backoff(first=600, cap=600))
    endpoint = await site.endpoint(plugin, timing=patient)
    await until(endpoint.state, lambda state: "refuses" in state.problem)

    kubelet.manners = Manners()
    os.utime(kubelet.socket)  # to whoever looks, a socket made anew

    await until(endpoint.state, ready)


@pytest.mark.scenario("K9")
async def test_k9_a_kubelet_that_never_dials_back_is_not_believed(site, plugin, until, quick):
    kubelet = await site.kubelet(manners=Manners(dial_back=False))
    endpoint = await site.endpoint(plugin, timing=replace(quick, dial_back=1.0))

    state = await until(endpoint.state, lambda state: "no list reached it" in state.problem)
    assert not state.ready
    kubelet.manners = Manners()

    await until(endpoint.state, ready)


@pytest.mark.scenario("K10")
async def test_k10_a_displaced_plugin_says_so_once_and_does_not_fight(site, plugin, make_plugin, until, quick):
    kubelet = await site.kubelet(manners=Manners(rivals=Rivals.REPLACED))
    told = []
    endpoint = await site.endpoint(plugin, displaced=told.append)
    await until(endpoint.state, ready)

    rival = _Rival(make_plugin(["z"]), site.directory, NullObserver(), timing=quick)
    task = asyncio.create_task(rival.run())
    state = await until(endpoint.state, lambda state: "displaced" in state.problem)
    await until(rival.state, ready)
    await asyncio.sleep(0.5)

    assert (state.registered, state.ready) == (False, False)
    assert "hami-example-rival.sock" in state.problem
    assert told == [state.problem]
    assert (endpoint.state.value.registrations, kubelet.allocatable(RESOURCE)) == (1, 1)
    await rival.close()
    await task


@pytest.mark.scenario("K10")
async def test_k10_a_displaced_plugin_registers_with_the_next_kubelet(site, plugin, make_plugin, until, quick):
    kubelet = await site.kubelet(manners=Manners(rivals=Rivals.REPLACED))
    endpoint = await site.endpoint(plugin)
    await until(endpoint.state, ready)
    rival = _Rival(make_plugin(["z"]), site.directory, NullObserver(), timing=quick)
    task = asyncio.create_task(rival.run())
    await until(endpoint.state, lambda state: "displaced" in state.problem)
    await rival.close()
    await task

    await kubelet.restart()

    await until(endpoint.state, ready)


@pytest.mark.scenario("K10")
async def test_k10_a_rival_that_was_there_first_and_insists_gets_its_way(site, plugin, make_plugin, until, quick):
    await site.kubelet(manners=Manners(rivals=Rivals.REPLACED))
    insistent = replace(quick, pause=Backoff(first=0.3, cap=0.3, jitter=0))
    rival = _Rival(make_plugin(["z"]), site.directory, NullObserver(), timing=insistent)
    task = asyncio.create_task(rival.run())
    await until(rival.state, ready)

    endpoint = await site.endpoint(plugin)
    state = await until(endpoint.state, lambda state: "displaced" in state.problem)

    assert state.registrations == 2
    await until(rival.state, ready)
    await rival.close()
    await task


async def test_a_stream_that_ends_for_no_reason_is_registered_again_soon(site, plugin, until):
    kubelet = await site.kubelet()
    endpoint = await site.endpoint(plugin)
    await until(endpoint.state, ready)

    await kubelet.plugin(RESOURCE).close()

    await until(endpoint.state, lambda state: state.ready and state.registrations == 2)


@pytest.mark.scenario("K11")
async def test_k11_a_socket_in_use_is_not_taken_over_until_it_is_free(site, plugin, make_plugin, until, quick):
    await site.kubelet()
    first = Endpoint(make_plugin(["first"]), site.directory, NullObserver(), timing=quick)
    task = asyncio.create_task(first.run())
    await until(first.state, ready)

    second = await site.endpoint(plugin)
    await until(second.state, lambda state: "another process serves" in state.problem)
    assert first.state.value.ready
    assert first.socket.is_socket()
    await first.close()
    await task

    await until(second.state, ready)


@pytest.mark.scenario("K11")
async def test_k11_a_socket_put_in_place_of_ours_is_not_removed_at_the_end(site, plugin, until):
    endpoint = await site.endpoint(plugin)
    await until(endpoint.state, lambda state: state.serving)
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), site.directory / "theirs")

    (site.directory / "theirs").rename(endpoint.socket)
    await until(endpoint.state, lambda state: "another process serves" in state.problem)
    await endpoint.close()

    assert endpoint.socket.is_socket()
    server.close()
    await server.wait_closed()


@pytest.mark.scenario("K12")
async def test_k12_a_list_that_no_kubelet_reads_is_not_registered(site, plugin, until):
    kubelet = await site.kubelet()
    usual = plugin.offers.value
    plugin.offers.set(tuple(Offer(id=f"{n:060}", healthy=True) for n in range(60_000)))
    endpoint = await site.endpoint(plugin)

    await until(endpoint.state, lambda state: "largest deviceSplitCount" in state.problem)
    assert kubelet.registrations == []
    plugin.offers.set(usual)

    await until(endpoint.state, ready)


async def test_the_end_leaves_nothing_behind(site, plugin, until):
    kubelet = await site.kubelet()
    endpoint = await site.endpoint(plugin)
    await until(endpoint.state, ready)
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)

    connection = kubelet.plugin(RESOURCE)
    async with asyncio.timeout(30):
        await endpoint.close()

    assert not endpoint.state.value.serving
    assert {path.name for path in site.directory.iterdir()} == {"kubelet.sock", CHECKPOINT}
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 0)
    assert connection.ended == "end of stream"
    assert kubelet.capacity(RESOURCE) == 4
    await endpoint.run()


async def test_a_cancelled_endpoint_cleans_up_and_stays_cancelled(site, plugin, until):
    endpoint = Endpoint(plugin, site.directory, NullObserver())
    task = asyncio.create_task(endpoint.run())
    await until(endpoint.state, lambda state: state.serving)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(site.directory.iterdir()) == []


async def test_a_path_too_long_for_a_socket_says_what_to_do(site, plugin, until):
    site.directory = site.directory / ("deep" * 25)
    site.directory.mkdir()
    endpoint = await site.endpoint(plugin)

    state = await until(endpoint.state, lambda state: "Linux allows 107" in state.problem)

    assert "kubeletDir" in state.problem


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("nvidia.com/gpu", "hami-nvidia-gpu.sock"),
        ("huawei.com/Ascend910B", "hami-huawei-Ascend910B.sock"),
        ("nvidia.com/mig-1g.5gb", "hami-nvidia-mig-1g.5gb.sock"),
    ],
)
def test_a_socket_is_named_after_its_resource(resource, name):
    assert socket_name(resource) == name


def test_each_generation_has_a_socket_of_its_own_and_the_newest_comes_first(site):
    for name in ("gpu.3.sock", "gpu.12.sock", "gpu.sock", "gpu.x.sock", "gpu2.4.sock", "rival.sock"):
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(site.directory / f"hami-example-{name}"))
    own = site.directory / socket_name(RESOURCE, 12)

    assert own.name == "hami-example-gpu.12.sock"
    assert [path.name for path in siblings(own, RESOURCE)] == ["hami-example-gpu.3.sock", "hami-example-gpu.sock"]


@pytest.mark.parametrize("rivals", [Rivals.BY_SOCKET, Rivals.BY_RESOURCE, Rivals.NEWEST])
async def test_a_successor_takes_the_resource_over_and_the_kubelet_never_loses_a_device(
    site, plugin, make_plugin, until, rivals
):
    kubelet = await site.kubelet(manners=Manners(rivals=rivals))
    first, heir = await site.endpoint(plugin, plugins=generation(1)), make_plugin()
    await until(first.state, ready)
    first.leave()
    waiting = asyncio.create_task(kubelet.plugin(RESOURCE).allocate(["a"]))  # asked of the first, which gave it up

    second = await site.endpoint(heir, plugins=generation(2, succeeding=True))
    await until(second.state, ready)
    assert (await waiting).edits.env == {"IDS": "a"}
    assert kubelet.allocatable(RESOURCE) == 4
    await first.close()
    await until(second.state, lambda state: state.registrations == (2 if rivals is Rivals.BY_RESOURCE else 1))
    await until(second.state, ready)
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)

    assert await kubelet.plugin(RESOURCE).allocate(["b"])
    assert (plugin.allocated, heir.allocated) == ([], [("a",), ("b",)])
    assert [path.name for path in siblings(site.directory / "other", RESOURCE)] == ["hami-example-gpu.2.sock"]


async def test_a_successor_that_the_kubelet_has_forgotten_is_not_dropped_with_the_first_and_is_known_again(
    site, plugin, make_plugin, until
):
    kubelet = await site.kubelet(manners=Manners(rivals=Rivals.BY_RESOURCE))
    first, heir = await site.endpoint(plugin, plugins=generation(1)), make_plugin()
    await until(first.state, ready)
    first.leave()
    second = await site.endpoint(heir, plugins=generation(2, succeeding=True))
    await until(second.state, ready)

    await second.unregister()
    await first.close()
    await kubelet.until(lambda: len(kubelet._connected[RESOURCE]) == 1)
    assert (kubelet.allocatable(RESOURCE), second.state.value.streams) == (4, 1)
    assert await kubelet.plugin(RESOURCE).allocate(["a"])
    await second.register_again()
    await until(second.state, lambda state: state.streams == 2)
    assert await kubelet.plugin(RESOURCE).allocate(["b"])

    assert (second.state.value.registrations, second.state.value.ready) == (2, True)
    assert heir.allocated == [("a",), ("b",)]
    sockets = {path.name for path in site.directory.iterdir() if path.is_socket()}
    assert sockets == {"kubelet.sock", "hami-example-gpu.2.sock"}

    await second.close()
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 0)


async def test_whom_the_kubelet_shall_know_again_tries_until_it_does(site, plugin, until):
    kubelet = await site.kubelet(manners=Manners(rivals=Rivals.BY_RESOURCE))
    endpoint = await site.endpoint(plugin)
    await until(endpoint.state, ready)
    await endpoint.unregister()

    kubelet.manners = Manners(rivals=Rivals.BY_RESOURCE, versions=("v9",))
    known = asyncio.create_task(endpoint.register_again())
    refused = len(kubelet.registrations)
    await kubelet.until(lambda: len(kubelet.registrations) > refused + 1)
    kubelet.manners = Manners(rivals=Rivals.BY_RESOURCE)
    await known

    assert (endpoint.state.value.ready, endpoint.state.value.registrations) == (True, 2)


async def test_devices_that_a_kubelet_takes_for_lost_after_the_return_are_back_when_it_knows_us_again(
    site, plugin, until, observer
):
    kubelet = await site.kubelet(manners=Manners(rivals=Rivals.BY_RESOURCE))
    endpoint = await site.endpoint(plugin, plugins=generation(2, succeeding=True), observer=observer)
    await until(endpoint.state, ready)
    await endpoint.unregister()
    before = len(observer.states)
    for returned in (2, 3, 4):  # at once: each end of a stream may find the next one
        await kubelet.plugin(RESOURCE).close()
        await until(endpoint.state, lambda state, n=returned: state.ready and state.registrations == n)
    assert all(state.registered for state in observer.states[before:])  # no rival was looked for
    kubelet.ledger.fail(RESOURCE)  # its own end of the first stream comes late, and by name

    await endpoint.register_again()

    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 4)


async def test_a_kubelet_that_takes_what_it_should_refuse_is_given_the_true_socket_at_once(site, plugin, until):
    kubelet = await site.kubelet()
    endpoint = await site.endpoint(plugin)
    await until(endpoint.state, ready)

    kubelet.manners = Manners(dial_back=False)
    await endpoint.unregister()

    asked = [request.endpoint for request in kubelet.registrations]
    assert asked == ["hami-example-gpu.sock", ".hami-example-gpu.off", "hami-example-gpu.sock"]


@pytest.mark.parametrize(
    ("version", "drops"),
    [
        ("v1.25.16", False),
        ("v1.26.0", True),
        ("v1.34.4", True),
        ("v1.35.2-gke.1", True),
        ("v1.36.0", False),
        ("v1.4.0", False),
        ("v2.30.0", False),
        ("", False),
        ("unknown", False),
    ],
)
def test_kubelets_from_1_26_to_1_35_drop_newcomers(version, drops):
    assert drops_newcomers(version) is drops


async def test_what_a_successor_refuses_is_refused_and_what_it_leaves_the_first_answers(
    site, plugin, make_plugin, until
):
    kubelet = await site.kubelet()
    first, heir = await site.endpoint(plugin, plugins=generation(1)), make_plugin()
    await until(first.state, ready)
    connection = kubelet.plugin(RESOURCE)
    first.leave()
    second = await site.endpoint(heir, plugins=generation(2, succeeding=True))
    await until(second.state, ready)

    heir.failure = RefusedError(RefusalReason.UNKNOWN_DEVICE, "not this one", code="INVALID_ARGUMENT", hint="another")
    with pytest.raises(grpc.aio.AioRpcError, match="not this one") as refused:
        await connection.allocate(["a"])
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    await second.close()
    waiting = asyncio.create_task(connection.allocate(["c"]))
    await asyncio.sleep(0.1)
    first.stay()
    assert await waiting
    assert (plugin.allocated, heir.allocated) == ([("c",)], [])


async def test_the_sockets_of_killed_predecessors_are_removed_and_no_others(site, plugin, until):
    await site.kubelet()
    others = ("hami-other-gpu.1.sock", ".hami-other-gpu.1.off", "hami-example-gpu.off")
    for name in ("hami-example-gpu.1.sock", ".hami-example-gpu.off", ".hami-example-gpu.1.off", *others):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(site.directory / name))

    await until((await site.endpoint(plugin, plugins=generation(2))).state, ready)

    assert {path.name for path in site.directory.iterdir() if path.is_socket()} == {
        *("kubelet.sock", "hami-example-gpu.2.sock"),
        *others,
    }


@pytest.mark.scenario("K11")
async def test_k11_another_daemon_of_an_older_generation_is_not_displaced(site, plugin, make_plugin, until):
    kubelet = await site.kubelet()
    await until((await site.endpoint(plugin, plugins=generation(3))).state, ready)

    second = await site.endpoint(make_plugin(), plugins=generation(4))

    await until(second.state, lambda state: "another process serves" in state.problem)
    assert len(kubelet.registrations) == 1


def generation(number, *, succeeding=False):
    """What the endpoints of one process share."""
    plugins = PluginDirectory()
    plugins.generation = number
    plugins.succeeding_until = time.monotonic() + 60 if succeeding else plugins.succeeding_until
    return plugins


@pytest.mark.parametrize("resource", ["gpu", "a/b/c", "../x/y", "x/..", "/x", "x/"])
def test_a_name_that_could_leave_the_directory_is_refused(resource):
    with pytest.raises(HamiError, match="is no resource name"):
        socket_name(resource)


class _Rival(Endpoint):
    """Another vendor's plugin for the same resource, on a socket of its own."""

    @property
    def socket(self):
        return self._directory / "hami-example-rival.sock"

    async def _clear(self):
        """It knows no other lives of its own."""


@pytest.mark.parametrize("known", [True, False])
async def test_a_former_plugin_that_the_kubelet_remembers_is_replaced_by_one_without_devices_that_leaves(
    site, plugin, until, known
):
    kubelet = await site.kubelet()
    former = await site.endpoint(plugin)
    await until(former.state, ready)
    await former.close()
    registrations = len(kubelet.registrations)
    resource = RESOURCE if known else "example.com/other"
    stale = StaleRegistration(
        resource=resource,
        node=Watched(NodeView(name="n", allocatable={resource: "0"})),
        checkpoint=CheckpointFile(site.directory),
        endpoint=lambda none: Endpoint(none, site.directory, NullObserver()),
    )
    (site.directory / "kubelet_internal_checkpoint").write_text(
        json.dumps({"Data": {"PodDeviceEntries": [], "RegisteredDevices": {RESOURCE: []}}})
    )

    await stale.run()

    assert len(kubelet.registrations) == registrations + known
    assert not list(site.directory.glob("hami-*.sock"))
    assert kubelet.allocatable(RESOURCE) == 0
