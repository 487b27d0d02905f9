"""containerd, asked as the kubelet asks it: over the Container Runtime Interface."""

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import grpc

from tests.runtimes import inside
from tests.runtimes.enclosure import Enclosure
from tests.runtimes.inside import Inside
from tests.runtimes.wanted import RefusedError, Wanted

CONFIGURATION = Path(__file__).with_name("containerd.toml")
SOCKET, SERVER_LOG, LOGS = "/run/containerd/containerd.sock", "/var/log/containerd.log", "/var/log/pods"
START_S, CALL_S, RUN_S = 30, 30, 60
POLL_S = 0.02

pb, stubs = grpc.protos_and_services("tests/runtimes/cri.proto")


class CrashedError(Exception):
    """The server is gone; the message is its log."""


class Containerd:
    """All containers run in one pod without a network of its own."""

    def __init__(self, enclosure: Enclosure, channel: grpc.Channel) -> None:
        self._enclosure = enclosure
        self._cri = stubs.RuntimeServiceStub(channel)
        self._numbers = itertools.count()
        self._pod, self._pod_id = self._sandbox(), ""

    @classmethod
    @contextlib.contextmanager
    def serving(cls, enclosure: Enclosure, *archives: str) -> Iterator[Self]:
        """Start it in the enclosure with the images loaded, and stop it."""
        enclosure.write("/etc/containerd/config.toml", CONFIGURATION.read_bytes())
        with (
            enclosure.running("containerd", "--config=/etc/containerd/config.toml", log=SERVER_LOG),
            grpc.insecure_channel(f"unix:{enclosure.path(SOCKET)}", options=[("grpc.enable_http_proxy", 0)]) as channel,
        ):
            try:
                grpc.channel_ready_future(channel).result(START_S)
            except grpc.FutureTimeoutError as error:
                raise TimeoutError(enclosure.path(SERVER_LOG).read_text()[-2000:]) from error
            for archive in archives:
                load = ("ctr", "--namespace=k8s.io", "images", "import", "--snapshotter=native", archive)
                loaded = enclosure.run(*load, deadline_s=START_S)
                assert loaded.returncode == 0, loaded.stderr
            served = cls(enclosure, channel)
            with served._in_pod():
                yield served

    def version(self) -> str:
        said = self._cri.Version(pb.VersionRequest(), timeout=CALL_S)
        return f"{said.runtime_name} {said.runtime_version}"

    def run(self, wanted: Wanted) -> Inside:
        name = self._next_name()
        with self._created(name, wanted) as container:
            self._accepted(self._cri.StartContainer, container)
            status = self._end_of(container)
        output = _output(self._enclosure.path(f"{LOGS}/{name}").read_text())
        assert status.exit_code == 0, f"{status.exit_code} {status.reason} {status.message}: {output}"
        return inside.parse(output)

    def configuration(self, wanted: Wanted) -> dict[str, Any]:
        """Return the OCI configuration that a container is made with. It is not started."""
        with self._created(self._next_name(), wanted) as container:
            request = pb.ContainerStatusRequest(container_id=container.container_id, verbose=True)
            answer = self._cri.ContainerStatus(request, timeout=CALL_S)
        return json.loads(answer.info["info"])["runtimeSpec"]

    def _next_name(self) -> str:
        return f"c{next(self._numbers)}"

    @contextlib.contextmanager
    def _created(self, name: str, wanted: Wanted):
        config = _config(name, wanted)
        request = pb.CreateContainerRequest(pod_sandbox_id=self._pod_id, config=config, sandbox_config=self._pod)
        container = pb.ContainerId(container_id=self._accepted(self._cri.CreateContainer, request).container_id)
        try:
            yield container
        finally:
            self._cri.RemoveContainer(container, timeout=CALL_S)

    @contextlib.contextmanager
    def _in_pod(self) -> Iterator[None]:
        started = self._cri.RunPodSandbox(pb.RunPodSandboxRequest(config=self._pod), timeout=CALL_S)
        self._pod_id = started.pod_sandbox_id
        try:
            yield
        finally:
            pod = pb.PodSandboxId(pod_sandbox_id=self._pod_id)
            with _unless_it_crashed():
                self._cri.StopPodSandbox(pod, timeout=CALL_S)
                self._cri.RemovePodSandbox(pod, timeout=CALL_S)

    def _sandbox(self):
        return pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name="pod", uid="pod", namespace="default"),
            log_directory=LOGS,
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=self._enclosure.cgroup,
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=_namespaces()),
            ),
        )

    def _accepted(self, call: Callable, request):
        try:
            return call(request, timeout=CALL_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise CrashedError(self._enclosure.path(SERVER_LOG).read_text()) from error
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            raise RefusedError(error.details()) from error

    def _end_of(self, container):
        request = pb.ContainerStatusRequest(container_id=container.container_id)
        deadline = time.monotonic() + RUN_S
        while True:
            status = self._cri.ContainerStatus(request, timeout=CALL_S).status
            if status.state == pb.CONTAINER_EXITED:
                return status
            if time.monotonic() > deadline:
                raise TimeoutError(f"the container runs for {RUN_S} s, in state {status.state}")
            time.sleep(POLL_S)


@contextlib.contextmanager
def _unless_it_crashed() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise


def _namespaces():
    return pb.NamespaceOption(network=pb.NODE, pid=pb.CONTAINER, ipc=pb.NODE)


def _config(name: str, wanted: Wanted):
    return pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=name),
        image=pb.ImageSpec(image=wanted.image),
        command=["/bin/sh", "-c", inside.SCRIPT, "report", *wanted.read],
        envs=[pb.KeyValue(key=key, value=value) for key, value in wanted.env.items()],
        mounts=[
            pb.Mount(container_path=mount.container_path, host_path=mount.host_path, readonly=mount.read_only)
            for mount in wanted.mounts
        ],
        devices=[
            pb.Device(container_path=node.path, host_path=node.source, permissions=node.permissions)
            for node in wanted.devices
        ],
        annotations=wanted.annotations,
        CDI_devices=[pb.CDIDevice(name=device) for device in wanted.cdi],
        log_path=name,
        linux=pb.LinuxContainerConfig(
            security_context=pb.LinuxContainerSecurityContext(namespace_options=_namespaces())
        ),
    )


def _output(log: str) -> str:
    """Return standard output out of a log of ``time stream tag text``, where the tag P says that a line goes on."""
    lines = (line.split(" ", 3) for line in log.splitlines())
    return "".join(text if tag == "P" else f"{text}\n" for _, stream, tag, text in lines if stream == "stdout")
