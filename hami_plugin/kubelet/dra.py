"""One DRA driver's presence at the kubelet: two sockets, one to register it, one for calls and for its devices' health.

The kubelet comes to us: it looks for sockets in its directory ``plugins_registry``, asks each for its name, and calls
the service socket that it is told. A service socket that comes back alone is noticed after minutes, so both are always
made anew together. A kubelet that has failed to register a path leaves that path alone for longer each time: so each
pair has a name of its own.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc

from hami_plugin.dra.claims import ClaimError
from hami_plugin.dra.prepared import Prepared
from hami_plugin.dra.preparing import ClaimRef
from hami_plugin.errors import HamiError
from hami_plugin.kubelet.api import dra_health_v1_pb2 as health_v1
from hami_plugin.kubelet.api import dra_health_v1_pb2_grpc as health_v1_rpc
from hami_plugin.kubelet.api import dra_health_v1alpha1_pb2 as health_v1alpha1
from hami_plugin.kubelet.api import dra_health_v1alpha1_pb2_grpc as health_v1alpha1_rpc
from hami_plugin.kubelet.api import dra_v1_pb2 as v1
from hami_plugin.kubelet.api import dra_v1_pb2_grpc as v1_rpc
from hami_plugin.kubelet.api import dra_v1beta1_pb2 as v1beta1
from hami_plugin.kubelet.api import dra_v1beta1_pb2_grpc as v1beta1_rpc
from hami_plugin.kubelet.api import pluginregistration_pb2 as registration_pb
from hami_plugin.kubelet.api import pluginregistration_pb2_grpc as registration_rpc
from hami_plugin.kubelet.listener import FileIdentity, ListenError, accepts, address, put_in_place
from hami_plugin.process.concurrency import Backoff, Watched, wait_event
from hami_plugin.process.log import logger

log = logger(__name__)

TYPE = "DRAPlugin"
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""A kubelet takes the first that it knows."""
MAX_CLAIMS = 256
MAX_ERROR = 2000
MAX_MESSAGE = 1024
HEALTH_TIMEOUT_S = 30
"""After how many seconds without news a kubelet takes devices for unknown."""
_OPTIONS = (("grpc.max_receive_message_length", 4 << 20),)

Context = grpc.aio.ServicerContext[Any, Any]


class Claims(Protocol):
    """Makes claims ready, and releases them."""

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, Prepared | ClaimError]: ...

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, ClaimError]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """A device as the kubelet shows its health at pods."""

    device: str
    healthy: bool
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraTiming:
    """Seconds. ``asked`` is how long a kubelet that is there may take to ask a new socket for its name."""

    tick: float = 1.0
    asked: float = 10.0
    health: float = 10.0
    close: float = 0.5
    again: Backoff = field(default_factory=lambda: Backoff(first=0.2, cap=10.0))


class DraServicer:
    """Answers both versions: their messages are the same but for the share's id, which the older one lacks."""

    def __init__(self, claims: Claims) -> None:
        self.running = 0
        self.leaving = False
        self._claims = claims

    def of(self, messages: Any) -> Any:
        """The service of one version."""
        return _Versioned(self, messages)

    async def prepare(self, request: Any, context: Context, messages: Any) -> Any:
        answers = await self._counted(request, context, self._claims.prepare)
        response = messages.NodePrepareResourcesResponse()
        for claim in request.claims:
            entry, answer = response.claims[claim.uid], answers.get(claim.uid)
            if isinstance(answer, Prepared):
                entry.devices.extend(_device(one, messages) for one in answer.devices)
            else:
                entry.error = str(answer or "no answer")[:MAX_ERROR]
        return response

    async def unprepare(self, request: Any, context: Context, messages: Any) -> Any:
        errors = await self._counted(request, context, self._claims.unprepare)
        response = messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            entry, error = response.claims[claim.uid], errors.get(claim.uid)
            if error is not None:
                entry.error = str(error)[:MAX_ERROR]
            entry.SetInParent()
        return response

    async def _counted(
        self,
        request: Any,
        context: Context,
        call: Callable[[Sequence[ClaimRef]], Coroutine[Any, Any, Mapping[str, Any]]],
    ) -> Mapping[str, Any]:
        if self.leaving:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the daemon is being replaced; its successor answers")
        if len(request.claims) > MAX_CLAIMS:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"more than {MAX_CLAIMS} claims in one call")
        self.running += 1
        try:
            refs = {c.uid: ClaimRef(uid=c.uid, namespace=c.namespace, name=c.name) for c in request.claims}
            return await call(tuple(refs.values()))
        finally:
            self.running -= 1


def _device(one: Any, messages: Any) -> Any:
    device = messages.Device(
        request_names=[one.request], pool_name=one.pool, device_name=one.device, cdi_device_ids=one.cdi_devices
    )
    if one.share_id and messages is v1:
        device.share_id = one.share_id
    return device


class _Versioned:
    """One version of the service."""

    def __init__(self, servicer: DraServicer, messages: Any) -> None:
        self._servicer = servicer
        self._messages = messages

    async def NodePrepareResources(self, request: Any, context: Context) -> Any:  # noqa: N802  # gRPC's name
        return await self._servicer.prepare(request, context, self._messages)

    async def NodeUnprepareResources(self, request: Any, context: Context) -> Any:  # noqa: N802  # gRPC's name
        return await self._servicer.unprepare(request, context, self._messages)


class HealthServicer:
    """Streams the devices' health at each change, and again before a kubelet takes it for outdated."""

    def __init__(self, pool: str, health: Watched[tuple[DeviceHealth, ...]], messages: Any, period: float) -> None:
        self._pool = pool
        self._health = health
        self._messages = messages
        self._period = period

    async def NodeWatchResources(self, _request: Any, _context: Context) -> AsyncIterator[Any]:  # noqa: N802  # gRPC's name
        while not self._health.closed:
            seen, now = self._health.version, int(time.time())
            yield self._messages.NodeWatchResourcesResponse(devices=[self._one(one, now) for one in self._health.value])
            await self._health.changed(seen, timeout=self._period)

    def _one(self, one: DeviceHealth, now: int) -> Any:
        status = self._messages.HEALTHY if one.healthy else self._messages.UNHEALTHY
        return self._messages.DeviceHealth(
            device=self._messages.DeviceIdentifier(pool_name=self._pool, device_name=one.device),
            health=status,
            last_updated_time=now,
            health_check_timeout_seconds=HEALTH_TIMEOUT_S,
            message=one.message[:MAX_MESSAGE],
        )


class Registrar(registration_rpc.RegistrationServicer):
    """Answers who we are from memory: the kubelet waits one second."""

    def __init__(self, driver: str, endpoint: Path) -> None:
        self.asked = asyncio.Event()
        self.problem = "the kubelet has not asked for the driver yet"
        self._driver = driver
        self._endpoint = endpoint

    async def GetInfo(self, request: registration_pb.InfoRequest, context: Context) -> registration_pb.PluginInfo:  # noqa: ARG002, N802  # gRPC's name
        self.asked.set()
        return registration_pb.PluginInfo(
            type=TYPE, name=self._driver, endpoint=str(self._endpoint), supported_versions=VERSIONS
        )

    async def NotifyRegistrationStatus(  # noqa: N802  # gRPC's name
        self,
        request: registration_pb.RegistrationStatus,
        context: Context,  # noqa: ARG002
    ) -> registration_pb.RegistrationStatusResponse:
        before = self.problem
        self.problem = "" if request.plugin_registered else f"the kubelet refuses the driver: {request.error[:500]}"
        if self.problem != before:
            log.info("driver registration", driver=self._driver, problem=self.problem or "none")
        return registration_pb.RegistrationStatusResponse()


@dataclass(slots=True, kw_only=True)
class _Socket:
    """A served socket. ``close`` removes it if it is still ours."""

    path: Path
    server: grpc.aio.Server
    identity: FileIdentity

    @property
    def intact(self) -> bool:
        return FileIdentity.of(self.path) == self.identity

    async def close(self, grace: float) -> None:
        if self.intact:
            with suppress(OSError):
                self.path.unlink()
        await self.server.stop(grace)


async def _serve(path: Path, add: Callable[[grpc.aio.Server], None]) -> _Socket:
    """Bound under a name that no kubelet looks at and that is never used again, and then renamed."""
    address(path)  # for the length, before anything is made
    bound = path.with_name(f".{secrets.token_hex(4)}")
    server = grpc.aio.server(options=_OPTIONS)
    add(server)
    hint = "mount the kubelet's directories plugins and plugins_registry read-write, at the same paths as outside"
    try:
        identity = await put_in_place(server, bound, path, hint=hint)
    except BaseException:
        await server.stop(None)
        with suppress(OSError):
            bound.unlink()
        raise
    return _Socket(path=path, server=server, identity=identity)


class DraEndpoint:
    """Serves one driver under the kubelet's ``root``. ``run`` it as a task; ``close`` ends it.

    ``generation`` tells the sockets of this life of the daemon from others', which may still be serving.
    """

    def __init__(
        self,
        driver: str,
        pool: str,
        claims: Claims,
        health: Watched[tuple[DeviceHealth, ...]],
        root: Path,
        *,
        generation: Callable[[], int] = lambda: 0,
        timing: DraTiming | None = None,
    ) -> None:
        self.driver = driver
        self._problem = "not started"
        self._pool = pool
        self._health = health
        self._servicer = DraServicer(claims)
        self._registry = root / "plugins_registry"
        self._folder = root / "plugins" / driver
        self._generation = generation
        self._timing = timing or DraTiming()
        self._registrar: Registrar | None = None
        self._sockets: list[_Socket] = []
        self._closed = asyncio.Event()

    @property
    def running(self) -> int:
        """Calls of the kubelet that are being answered."""
        return self._servicer.running

    @property
    def problem(self) -> str:
        """Why the kubelet cannot use the driver; empty once it has accepted it."""
        return self._problem or (self._registrar.problem if self._registrar else "")

    @property
    def registered(self) -> bool:
        return self._registrar is not None and not self._registrar.problem

    @property
    def _asked(self) -> bool:
        return self._registrar is not None and self._registrar.asked.is_set()

    def leave(self) -> None:
        """A successor serves from now on. The kubelet asks again what this process does not answer any more."""
        self._servicer.leaving = True

    def stay(self) -> None:
        """Answer the kubelet again."""
        self._servicer.leaving = False

    async def close(self) -> None:
        """Remove both sockets, and stop serving."""
        self._closed.set()
        self._health.close()
        await self._end()

    async def run(self) -> None:
        """Serve until ``close``, or until cancelled. Whatever takes a socket away, both are made anew."""
        attempt, delays = 0, self._timing.again.delays()
        try:
            while not self._closed.is_set():
                attempt += 1
                try:
                    await self._open(attempt)
                except HamiError as error:
                    if str(error) != self._problem:
                        log.warning("driver is away from the kubelet", driver=self.driver, why=str(error))
                    self._problem = str(error)
                    await self._end()
                    await wait_event(self._closed, within=next(delays))
                    continue
                while not await self._hold():
                    await wait_event(self._closed, within=next(delays))
                    if not self._asked:  # else it came late
                        break
                delays = self._timing.again.delays() if self._asked else delays
                await self._end()
        finally:
            await self._end()

    async def _open(self, attempt: int) -> None:
        """The service first: the kubelet may call as soon as it knows."""
        await self._clear()
        token = f"{self._generation()}.{attempt}"
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            if not self._registry.is_dir():
                raise ListenError(
                    f"{self._registry} is not a directory",
                    hint="mount the kubelet's directory there, or set kubeletDir to where it is",
                )
        except OSError as error:
            raise ListenError(f"cannot make {self._folder}: {error}") from error
        service = await _serve(self._folder / f"dra.{token}.sock", self._add_services)
        self._sockets = [service]
        self._registrar = registrar = Registrar(self.driver, service.path)
        self._sockets.append(
            await _serve(
                self._registry / f"{self.driver}-{token}-reg.sock",
                lambda server: registration_rpc.add_RegistrationServicer_to_server(registrar, server),
            )
        )
        self._problem = ""
        log.info("driver served", driver=self.driver, socket=str(service.path))

    def _add_services(self, server: grpc.aio.Server) -> None:
        v1_rpc.add_DRAPluginServicer_to_server(self._servicer.of(v1), server)
        v1beta1_rpc.add_DRAPluginServicer_to_server(self._servicer.of(v1beta1), server)
        for rpc, messages in ((health_v1_rpc, health_v1), (health_v1alpha1_rpc, health_v1alpha1)):
            servicer = HealthServicer(self._pool, self._health, messages, self._timing.health)
            rpc.add_DRAResourceHealthServicer_to_server(servicer, server)

    async def _hold(self) -> bool:
        """Until a socket is lost. False: no kubelet has asked for the driver, though it may be there."""
        registrar, since = self._registrar, time.monotonic()
        while registrar and all(one.intact for one in self._sockets):
            if not registrar.asked.is_set() and time.monotonic() - since > self._timing.asked:
                self._problem = (
                    f"no kubelet looks into {self._registry}; it is not running, or its directory is elsewhere"
                )
                return False
            self._problem = ""
            await wait_event(self._closed, within=self._timing.tick)
            if self._closed.is_set():
                return True
        return True

    async def _clear(self) -> None:
        """Remove the sockets of lives that were killed. Nobody else does."""
        name = re.escape(self.driver)
        for folder, pattern in (
            (self._registry, rf"{name}-\d+\.\d+-reg\.sock"),
            (self._folder, r"dra\.\d+\.\d+\.sock"),
        ):
            with suppress(OSError):
                for path in [one for one in folder.iterdir() if re.fullmatch(pattern, one.name)]:
                    if not await accepts(path):
                        path.unlink(missing_ok=True)

    async def _end(self) -> None:
        sockets, self._sockets = self._sockets, []
        self._registrar = None
        for one in reversed(sockets):
            await one.close(self._timing.close)
