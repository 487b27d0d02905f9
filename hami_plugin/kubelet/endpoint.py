"""One resource's presence at the kubelet: serve, register, stay registered, and start over whenever that was lost.

It is level-triggered: at each wake-up, and each second, it looks at the kubelet's socket, at its own, and at its
streams, and does the next thing that is missing. A restart of the kubelet is therefore no special case.

The kubelet has no call by which a plugin unregisters: it remembers one as long as a registration that fails, or a list
without devices, does not take its place. ``Endpoint.unregister`` and ``StaleRegistration`` make use of that.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.kubelet.api import deviceplugin_pb2 as pb
from hami_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from hami_plugin.kubelet.holders import CheckpointFile
from hami_plugin.kubelet.listener import FileIdentity, Listener, ListenError, accepts, address, dial, status_text
from hami_plugin.kubelet.servicer import API_VERSION, DevicePluginServicer, RelayedError, require_list_fits
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.model.delivery import Answer
from hami_plugin.model.ports import DevicePlugin, EndpointState, Observer, Offer
from hami_plugin.model.views import NodeView, major_minor
from hami_plugin.process.concurrency import Backoff, Watched, cancel, poll_condition
from hami_plugin.process.log import logger

KUBELET_SOCKET = "kubelet.sock"
UNREGISTER_S = 30.0
"""How long a kubelet may take to read that a former plugin has no devices any more."""
KNOWN_S = 10.0
"""How long calls wait for the list of pods, while the configuration changes."""
MAX_DROPS = 3
"""How often a kubelet may drop us with a predecessor before we look for another reason."""
_DROPPING = ((1, 26), (1, 35))
_RESOURCE = re.compile(r"([a-z0-9][a-z0-9-]*)(?:\.[a-z0-9.-]+)?/([A-Za-z0-9][A-Za-z0-9._-]*)")


class RegistrationError(HamiError):
    """The kubelet does not have us. ``refused`` says that it answered, and will not change its mind quickly."""

    def __init__(self, message: str, *, hint: str = "", refused: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.refused = refused


def socket_name(resource: str, generation: int = 0) -> str:
    """``hami-<first label of the domain>-<name>.<generation>.sock``: a base name, as the kubelet wants it.

    Each process has a generation of its own. A kubelet takes a plugin on another socket for another plugin, and then
    the end of the former one takes no device away (since 1.36, and up to 1.25).
    """
    match = _RESOURCE.fullmatch(resource)
    if not match:
        raise HamiError(f"{resource!r} is no resource name", hint="write it as domain/name, such as example.com/gpu")
    return f"hami-{match[1]}-{match[2]}{f'.{generation}' if generation else ''}.sock"


def _generation(name: str, resource: str) -> int | None:
    """The generation of a socket's name; None where it is no socket for this resource."""
    stem = socket_name(resource).removesuffix(".sock")
    match = re.fullmatch(rf"{re.escape(stem)}(?:\.([0-9]{{1,18}}))?\.sock", name)
    return int(match[1] or 0) if match else None


def drops_newcomers(kubelet: str) -> bool:
    """Whether a kubelet of this version knows a plugin by its resource alone. The end of any stream of the resource
    then drops the plugin that registered last.
    """
    numbers = major_minor(kubelet)
    return numbers is not None and _DROPPING[0] <= numbers <= _DROPPING[1]


async def register(directory: Path, plugin: DevicePlugin, endpoint: str, *, timeout: float) -> None:  # noqa: ASYNC109  # handed to gRPC
    """Announce ``plugin`` as served on the socket named ``endpoint``. ``RegistrationError`` when that fails."""
    request = pb.RegisterRequest(
        version=API_VERSION,
        endpoint=endpoint,
        resource_name=plugin.resource,
        options=pb.DevicePluginOptions(
            pre_start_required=plugin.pre_start_required, get_preferred_allocation_available=True
        ),
    )
    kubelet = directory / KUBELET_SOCKET
    async with dial(kubelet) as channel:
        try:
            await rpc.RegistrationStub(channel).Register(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise _explained(error, kubelet, plugin.resource, timeout) from error


def _explained(error: grpc.aio.AioRpcError, kubelet: Path, resource: str, timeout: float) -> RegistrationError:
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return RegistrationError(
                f"no kubelet answers on {kubelet}",
                hint="it is starting, or kubeletDir is not the directory it uses; trying again",
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return RegistrationError(
                f"the kubelet took over {timeout:g} s to register {resource}",
                hint="it dials our socket first: the directory must be the same one on the host",
            )
        case _:
            return RegistrationError(
                f"the kubelet refuses to register {resource} ({status_text(error)})",
                hint=f"this daemon speaks {API_VERSION}; the kubelet's log says more",
                refused=True,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTiming:
    """Waiting times of an endpoint, in seconds.

    ``close`` is how long calls may run on at the end, ``relayed`` those that were passed on.
    ``settle`` is how long a kubelet that ended our stream has to show that it is restarting. ``pause`` follows a
    displacement: at least a minute, so that two plugins never fight over a resource.
    """

    tick: float = 1.0
    self_check: float = 5.0
    register: float = 10.0
    dial_back: float = 10.0
    settle: float = 0.5
    close: float = 0.3
    relayed: float = 5.0
    pace: float = 0.2
    serve: Backoff = field(default_factory=lambda: Backoff(first=0.2, cap=2.0))
    again: Backoff = field(default_factory=lambda: Backoff(first=0.05, cap=1.0))
    refused: Backoff = field(default_factory=lambda: Backoff(first=1.0, cap=30.0))
    pause: Backoff = field(default_factory=lambda: Backoff(first=60.0, cap=600.0, jitter=0.0))


class Backoffs:
    """How long to wait after each kind of failure. A new kubelet, or a long time without failure, gets a new one."""

    def __init__(self, timing: EndpointTiming) -> None:
        self.again: Iterator[float] = timing.again.delays()
        self.refused: Iterator[float] = timing.refused.delays()
        self.pause: Iterator[float] = timing.pause.delays()
        self.losses = 0


class PluginDirectory:
    """What the endpoints of one directory share. ``started`` is called for each kubelet that any of them meets first,
    before it hears of that one.

    ``generation`` is part of our sockets' names. Until ``succeeding_until`` a kubelet may drop us when it loses our
    predecessor.
    """

    def __init__(self, started: Callable[[], None] = lambda: None) -> None:
        self.generation = 0
        self.succeeding_until = -math.inf
        self.known: Callable[[], bool] = lambda: True
        self.inherited: dict[str, Endpoint] = {}
        """Endpoints of a former configuration, by resource: their sockets and streams go to whoever serves next."""
        self._started = started
        self._resources: set[str] = set()
        self._kubelet: FileIdentity | None = None

    def join(self, resource: str) -> None:
        """A socket for this resource is one of ours, or of another life of this daemon."""
        self._resources.add(resource)

    def inherit(self, former: PluginDirectory, endpoints: Iterable[Endpoint], known: Callable[[], bool]) -> None:
        """Go on where another one in this process has stopped, with what its endpoints hold open.

        ``known``: whether the node's pods are, so that calls can be answered.
        """
        self.known = known
        self.generation, self._kubelet = former.generation, former._kubelet
        self.inherited = {endpoint.state.value.resource: endpoint for endpoint in endpoints}

    def meet(self, kubelet: FileIdentity) -> None:
        """An endpoint is about to register. A kubelet is new once: for one that comes later it has been there."""
        if kubelet != self._kubelet:
            self._kubelet = kubelet
            self._started()

    def others(self, directory: Path) -> Mapping[Path, FileIdentity]:
        """The sockets of other plugins in ``directory``."""
        return {
            path: identity
            for path in _sockets(directory)
            if path.name != KUBELET_SOCKET
            and all(_generation(path.name, resource) is None for resource in self._resources)
            and (identity := FileIdentity.of(path))
        }


def _sockets(directory: Path) -> Sequence[Path]:
    try:
        return [path for path in directory.iterdir() if path.is_socket()]
    except OSError:
        return ()


def siblings(socket: Path, resource: str) -> Sequence[Path]:
    """The sockets of other lives of this daemon for the same resource, the newest first."""
    known = {path: _generation(path.name, resource) for path in _sockets(socket.parent) if path.name != socket.name}
    found = {path: number for path, number in known.items() if number is not None}
    return sorted(found, key=lambda path: -found[path])


def unanswered(socket: Path) -> Path:
    """Where a registration is made to fail: a socket beside ours that answers nothing."""
    return socket.with_name(f".{socket.stem}.off")


def unanswered_sockets(directory: Path, resource: str) -> Sequence[Path]:
    """Those of all lives of this daemon for the resource: one that was killed meanwhile has left its own."""
    found = {path: re.fullmatch(r"\.(.+)\.off", path.name) for path in _sockets(directory)}
    return [path for path, of in found.items() if of and _generation(f"{of[1]}.sock", resource) is not None]


class SiblingRelay:
    """Passes the kubelet's calls on to whoever serves the resource by now, on a socket beside ours.

    While nobody does, they wait: one process has released the node, and the next has yet to take it. ``ended`` says
    that nobody will, and that this process serves again.
    """

    RETRY_S = 0.02

    def __init__(self, socket: Path, resource: str) -> None:
        self.ended = False
        self._socket = socket
        self._resource = resource

    async def answer(self, call: str, request: Any, within: float) -> Any:
        """The newest sibling's answer; None once ``ended``. ``RelayedError`` with its refusal, or after ``within``."""
        until = asyncio.get_running_loop().time() + within
        while not self.ended:
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                raise RelayedError(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    f"{call}: the daemon is being replaced, and its successor did not answer within {within:g} s",
                )
            for sibling in siblings(self._socket, self._resource):
                if not await accepts(sibling):
                    continue
                async with dial(sibling) as channel:
                    try:
                        return await getattr(rpc.DevicePluginStub(channel), call)(request, timeout=left)
                    except grpc.aio.AioRpcError as error:
                        if error.code() not in _LOST:
                            raise RelayedError(error.code(), error.details() or "") from error
            await asyncio.sleep(self.RETRY_S)
        return None


class HeldCalls:
    """Keeps the kubelet's calls waiting while this process changes its configuration.

    Once ``ended``, whoever serves the resource by then answers them. ``refused`` says that nobody will.
    """

    LOOK_S = 0.01

    def __init__(self) -> None:
        self.ended = False
        self.refused = ""

    async def answer(self, call: str, _request: Any, within: float) -> Any:
        """None once ``ended``; ``RelayedError`` once ``refused``, or after ``within``."""
        until = asyncio.get_running_loop().time() + within
        while not self.ended:
            if self.refused:
                raise RelayedError(grpc.StatusCode.UNAVAILABLE, f"{call}: {self.refused}")
            if asyncio.get_running_loop().time() > until:
                raise RelayedError(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    f"{call}: the configuration is changing, and that took over {within:g} s; try again",
                )
            await asyncio.sleep(self.LOOK_S)
        return None


_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""How a call ends whose process is killed."""


log = logger(__name__)


class Endpoint:
    """Serves ``plugin`` in the kubelet's ``directory``. ``run`` it as a task; ``close`` ends it.

    ``displaced`` is called with the reason when another plugin takes the resource over. Endpoints of one directory
    should share one ``watch`` and one ``plugins``.
    """

    def __init__(
        self,
        plugin: DevicePlugin,
        directory: Path,
        observer: Observer,
        *,
        watch: DirectoryWatch | None = None,
        plugins: PluginDirectory | None = None,
        displaced: Callable[[str], None] | None = None,
        timing: EndpointTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plugin = plugin
        self._directory = directory
        self._observer = observer
        self._watch = watch or DirectoryWatch(directory)
        self._plugins = plugins or PluginDirectory()
        self._displaced = displaced
        self._timing = timing or EndpointTiming()
        self._clock = clock
        self._plugins.join(plugin.resource)
        self._kubelet = directory / KUBELET_SOCKET
        self._wake = asyncio.Event()
        self._servicer = self._new_servicer()
        self._main: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._left: Listener | None = None
        self._leaving = self._silent = self._unregistered = False
        self._drops = 0
        self._complaint = ""
        self.state = Watched(EndpointState(resource=plugin.resource, since=clock()))

    @property
    def socket(self) -> Path:
        return self._directory / socket_name(self._plugin.resource, self._plugins.generation)

    @property
    def running(self) -> int:
        """Calls of the kubelet that this process is answering itself."""
        return self._servicer.running

    async def run(self) -> None:
        """Serve until ``close``, or until cancelled."""
        if self._closing.is_set():
            return
        self._main = asyncio.create_task(self._serve_on(), name=f"endpoint {self._plugin.resource}")
        try:
            await self._main
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closing.is_set() or task is None or task.cancelling():
                raise

    def leave(self) -> None:
        """Pass on what the kubelet asks from now on. The streams stay open, until ``close``, also after ``run``."""
        self._servicer.relay = SiblingRelay(self.socket, self._plugin.resource)
        self._leaving = True

    def hold(self) -> None:
        """Keep what the kubelet asks waiting from now on, for an endpoint that takes the socket and its streams over.

        What this one says of itself after that counts no more.
        """
        self._servicer.relay = HeldCalls()
        self._leaving = self._silent = True

    def bequeath(self) -> Listener | None:
        """The socket with its streams, once; None where none is open."""
        left, self._left = self._left, None
        return left

    def stay(self) -> None:
        """Answer the kubelet again, and what has waited since ``leave`` or ``hold``."""
        if isinstance(self._servicer.relay, SiblingRelay | HeldCalls):
            self._servicer.relay.ended = True
        self._servicer.relay, self._leaving, self._silent = None, False, False

    async def unregister(self) -> None:
        """Make a kubelet that ``drops_newcomers`` forget who serves the resource. It goes on listening to us and asking
        us, and the end of a predecessor's stream drops nobody. It would not notice our end either, until
        ``register_again``.

        It forgets when a registration fails: one on a socket that does not answer what its options are.
        """
        self._unregistered = True  # also where it goes wrong half-way
        mute, path = grpc.aio.server(), unanswered(self.socket)
        try:
            path.unlink(missing_ok=True)
            mute.add_insecure_port(address(path))
            await mute.start()
            path.chmod(0o600)
            await register(self._directory, self._plugin, path.name, timeout=self._timing.register)
            await self.register_again()  # it is of another version, and would ask there
        except (OSError, RuntimeError, RegistrationError) as error:  # gRPC raises RuntimeError when a bind fails
            if not (isinstance(error, RegistrationError) and error.refused):
                log.warning(
                    "the kubelet may drop us with the predecessor", resource=self._plugin.resource, why=str(error)
                )
        finally:
            await mute.stop(None)
            with suppress(OSError):
                path.unlink(missing_ok=True)

    async def register_again(self) -> None:
        """Register beside the stream that is open, so that the kubelet notices our end again. Where it has dropped us
        meanwhile, it may have come to that after our return: then this makes the devices healthy again.
        """
        for delay in self._timing.refused.delays():
            if not self._unregistered:
                return
            try:
                await register(self._directory, self._plugin, self.socket.name, timeout=self._timing.register)
            except RegistrationError as error:
                log.warning("not registered again", resource=self._plugin.resource, why=str(error))
                await asyncio.sleep(delay)
            else:
                self._unregistered = False
                self._report(registered=True)

    async def close(self) -> None:
        """End the streams, stop serving, and remove our socket if it is still ours."""
        self._closing.set()
        if self._main:
            await cancel(self._main)
        if self._left:
            if isinstance(relay := self._left.servicer.relay, HeldCalls):
                relay.refused = f"{self._plugin.resource} has left this node with the last change of the configuration"
            await self._left.close(grace=self._timing.relayed)

    async def _serve_on(self) -> None:
        delays = self._timing.serve.delays()
        with self._watch.subscribed(self._wake.set):
            while True:
                try:
                    await self._serve_once()
                    delays = self._timing.serve.delays()
                except HamiError as error:
                    self._complain(error)
                    await self._until(lambda: False, within=next(delays))

    async def _serve_once(self) -> None:
        """Serve one socket, until it is no longer ours."""
        if not self._directory.is_dir():
            raise ListenError(
                f"{self._directory} is not a directory",
                hint="mount the kubelet's device-plugins directory there, or set kubeletDir to where it is",
            )
        former = self._plugins.inherited.pop(self._plugin.resource, None)
        listener = await self._taken(former) if former else None
        inherited = listener is not None
        if listener is None:
            await self._clear()
            self._servicer = self._new_servicer()
            listener = await Listener.open(self.socket, self._servicer, timeout=self._timing.self_check)
        try:
            self._report(serving=True, problem="not registered yet")
            await self._hold(listener, inherited=inherited)
            log.info("own socket lost, serving again", resource=self._plugin.resource, socket=str(self.socket))
        finally:
            if not self._silent:
                self._report(serving=False, registered=False, problem="own socket not served")
            if self._leaving:
                self._left = listener
            else:
                await listener.close(grace=self._timing.close if self._closing.is_set() else 0.0)
            if not self._silent:
                self._report()

    async def _taken(self, former: Endpoint) -> Listener | None:
        """The socket that another endpoint of this process holds open, with the kubelet's streams and what it asks.

        None where there is none, or the kubelet was promised other calls than this plugin's.
        """
        await poll_condition(self._plugins.known, within=KNOWN_S)
        left = former.bequeath()
        if left is None:
            return None
        if former._plugin.pre_start_required != self._plugin.pre_start_required:
            await left.close(grace=self._timing.close)
            return None
        self._servicer = left.servicer
        relay, self._servicer.relay = self._servicer.relay, None
        self._servicer.become(self._plugin, self._observer, self._stream_changed)
        if isinstance(relay, HeldCalls):
            relay.ended = True
        self.state.set(replace(former.state.value, problem=""))
        return left

    async def _clear(self) -> None:
        """Remove the sockets of lives that were killed. A predecessor that still streams removes its own."""
        for sibling in siblings(self.socket, self._plugin.resource):
            if not await accepts(sibling):
                sibling.unlink(missing_ok=True)
            elif self._clock() >= self._plugins.succeeding_until:
                raise ListenError(
                    f"another process serves {sibling}", hint="stop it; a second hami-plugin on one node cannot work"
                )
        for path in unanswered_sockets(self.socket.parent, self._plugin.resource):
            if not await accepts(path):
                path.unlink(missing_ok=True)

    async def _hold(self, listener: Listener, *, inherited: bool) -> None:
        """Be registered with whichever kubelet is there, until ``listener`` has lost its place.

        ``inherited``: the kubelet may be listening to it already.
        """
        kubelet: FileIdentity | None = None
        backoffs = Backoffs(self._timing)

        def lost() -> bool:
            return not listener.intact or FileIdentity.of(self._kubelet) != kubelet

        while listener.intact:
            present = FileIdentity.of(self._kubelet)
            if present != kubelet:
                kubelet, backoffs = present, Backoffs(self._timing)
            if kubelet is None:
                self._complain(_absent(self._kubelet))
                await self._until(lost)
                continue
            self._plugins.meet(kubelet)
            others = self._plugins.others(self._directory)
            try:
                if not (inherited and self._servicer.list_sent):
                    await self._join(lost)
                inherited = False
            except RegistrationError as error:
                self._complain(error)
                await self._until(lost, within=next(backoffs.refused if error.refused else backoffs.again))
                continue
            since = self._clock()
            while await self._streaming(lost):
                pass
            if self._clock() - since > self._timing.dial_back:
                backoffs = Backoffs(self._timing)
            if not lost() and not self._dropped_with_predecessor():
                await self._step_back(lost, others, backoffs)

    async def _join(self, lost: Callable[[], bool]) -> None:
        """Register, and wait until the kubelet listens to us."""
        require_list_fits(self._plugin.offers.value)
        started = self._clock()
        await register(self._directory, self._plugin, self.socket.name, timeout=self._timing.register)
        self._report(registered=True, problem="the kubelet has not opened ListAndWatch yet")
        if not await self._until(lambda: lost() or self._servicer.list_sent, within=self._timing.dial_back):
            raise RegistrationError(
                f"the kubelet registered {self._plugin.resource}, but no list reached it "
                f"within {self._timing.dial_back:g} s",
                hint=self._servicer.oversized or "the directory must be the same one on the host; trying again",
            )
        if not lost():
            self._complaint = ""
            log.info(
                "registered",
                resource=self._plugin.resource,
                socket=str(self.socket),
                seconds=round(self._clock() - started, 3),
            )

    async def _streaming(self, lost: Callable[[], bool]) -> bool:
        """Wait until the last stream ends. True: the kubelet opened another one soon."""
        await self._until(lambda: lost() or not self._servicer.streams)
        if lost():
            return False
        self._report(problem="the kubelet ended ListAndWatch")
        if self._succeeding:
            return False
        back = await self._until(lambda: lost() or self._servicer.list_sent, within=self._timing.settle)
        return back and not lost()

    @property
    def _succeeding(self) -> bool:
        return self._drops < MAX_DROPS and self._clock() < self._plugins.succeeding_until

    def _dropped_with_predecessor(self) -> bool:
        """Whether to register again at once. Kubernetes 1.26 to 1.35 knows a plugin by its resource alone: when our
        predecessor's stream ends, it drops us; and may drop us again, as it has yet to see the end of our own.
        """
        if not self._succeeding:
            return False
        self._drops += 1
        log.info("dropped with the predecessor, registering again", resource=self._plugin.resource)
        return True

    async def _step_back(
        self, lost: Callable[[], bool], before: Mapping[Path, FileIdentity], backoffs: Backoffs
    ) -> None:
        """The kubelet is there, unchanged, and ended our stream: find out why, and wait accordingly."""
        self._report(registered=False)
        if not await accepts(self._kubelet):
            return  # it is stopping; its socket goes, or registering fails, until it is back
        backoffs.losses += 1
        rivals = await self._rivals({} if backoffs.losses > 1 else before)
        if not rivals:
            await self._until(lost, within=next(backoffs.again))
            return
        why = (
            f"displaced: the kubelet left us for another plugin of {self._plugin.resource}, "
            f"probably on {' or '.join(rivals)}; remove one of the two plugins from this node"
        )
        self._report(problem=why)
        log.error("displaced", resource=self._plugin.resource, rivals=rivals, why=why)
        if self._displaced:
            self._displaced(why)
        await self._until(lost, within=next(backoffs.pause))

    async def _rivals(self, before: Mapping[Path, FileIdentity]) -> list[str]:
        """Live sockets of other plugins that were not there ``before``."""
        return [
            path.name
            for path, identity in self._plugins.others(self._directory).items()
            if before.get(path) != identity and await accepts(path)
        ]

    async def _until(self, condition: Callable[[], bool], *, within: float | None = None) -> bool:
        """Wait for ``condition``, looking at each wake-up and each tick, at most ``within`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not condition():
                    self._wake.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._timing.tick):
                            await self._wake.wait()
                    self._watch.look()
                return True
        return condition()

    def _new_servicer(self) -> DevicePluginServicer:
        return DevicePluginServicer(self._plugin, self._observer, changed=self._stream_changed, pace=self._timing.pace)

    def _stream_changed(self) -> None:
        self._report()
        self._wake.set()

    def _complain(self, error: HamiError) -> None:
        """Report a problem, and log it once for as long as it stays the same."""
        if str(error) != self._complaint:
            log.warning("not registered", resource=self._plugin.resource, why=str(error))
        self._complaint = str(error)
        self._report(registered=False, problem=str(error))

    def _report(
        self, *, serving: bool | None = None, registered: bool | None = None, problem: str | None = None
    ) -> None:
        """Publish what changed, and what the streams say; the rest stays."""
        old = self.state.value
        new = replace(
            old,
            serving=old.serving if serving is None else serving,
            registered=old.registered if registered is None else registered,
            registrations=old.registrations + (registered is True),
            problem=old.problem if problem is None else problem,
            streams=self._servicer.streams,
            list_sent=self._servicer.list_sent,
        )
        if new.ready:
            new = replace(new, problem=self._servicer.oversized)
        if (new.ready, new.problem) != (old.ready, old.problem):
            new = replace(new, since=self._clock())
        if self.state.set(new) and not self._silent:
            self._observer.endpoint(new)


def _absent(kubelet: Path) -> RegistrationError:
    return RegistrationError(
        f"there is no {kubelet}",
        hint="the kubelet is not running, or kubeletDir is not the directory it uses; waiting for it",
    )


class _NoDevices:
    """A ``DevicePlugin`` of a resource of which this node has nothing."""

    pre_start_required = False

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.offers: Watched[tuple[Offer, ...]] = Watched(())

    async def allocate(self, ids: Sequence[str]) -> Answer:  # noqa: ARG002  # the kubelet has none to ask for
        raise RefusedError(RefusalReason.UNKNOWN_DEVICE, f"this node has no {self.resource} for device plugins")

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:  # noqa: ARG002  # as above
        return ()

    async def pre_start(self, ids: Sequence[str]) -> None:
        """The kubelet does not ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleRegistration:
    """What the kubelet may remember, for some minutes, of a device plugin whose devices go by claims now.

    It asks that plugin before each start of a container, even when the scheduler has given the container devices by a
    claim. Once a plugin without devices has registered and left, it asks nobody.
    """

    resource: str
    node: Watched[NodeView | None]
    checkpoint: CheckpointFile
    endpoint: Callable[[DevicePlugin], Endpoint]

    async def run(self) -> None:
        """Until the kubelet knows that no device plugin has any, so that pods that ask by the resource's name start.

        While the node has any, somebody's device plugin serves it, which is left alone.
        """
        while not self._is_left:
            await self.node.changed(self.node.version)
        try:
            known = await self.checkpoint.knows(self.resource)
        except HamiError as error:
            log.debug("no former device plugin is known of", resource=self.resource, why=str(error))
            return
        if not known:
            return
        replaced = await self._replace()
        log.info("device plugin given up", resource=self.resource, replaced=replaced)
        if not replaced:
            raise HamiError(
                f"the kubelet was not told that {self.resource} goes by claims",
                hint=f"until it has forgotten it, pods with {self.resource} and no claim do not start",
            )

    @property
    def _is_left(self) -> bool:
        node = self.node.value
        return node is not None and node.allocatable.get(self.resource) == "0"

    async def _replace(self) -> bool:
        """Serve no devices until the kubelet has read that there are none, and no longer. False: it has not read it."""
        endpoint = self.endpoint(_NoDevices(self.resource))
        running = asyncio.create_task(endpoint.run(), name="no devices")
        try:
            async with asyncio.timeout(UNREGISTER_S):
                while not endpoint.state.value.ready:
                    await endpoint.state.changed(endpoint.state.version)
        except TimeoutError:
            return False
        finally:
            await endpoint.close()
            await cancel(running)
        return True
