"""Pods placed in a large cluster of real servers: ``python -m tests.realnode.scale``, as root, on two cores.

etcd, the API server and kube-scheduler are real, the nodes are objects without kubelets. The pods are placed three
times: without devices by kube-scheduler alone, as it comes and with a client that nothing holds back, and with a share
of a card each by kube-scheduler with our extender, as the chart configures both. Daemons are hollow: what they write
once a pod is bound is written for them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bench import scale
from bench.figures import Spread
from bench.occupation import nvidia
from bench.processes import Interpreter, cpu_seconds, memory, peak_memory
from bench.scale import Api, HollowDaemons, Running, Size
from tests.charts import helm
from tests.realnode import ground, versions
from tests.realnode.api import Api as Caller
from tests.realnode.api import Network
from tests.realnode.commands import commands
from tests.realnode.ground import KEYS
from tests.realnode.install import servers_of
from tests.realnode.servers import Server, until
from tests.runtimes.enclosure import Enclosure, enclosed
from tools.debian import telling
from tools.debian.commands import LackingError
from tools.debian.telling import Say
from tools.image import build, debian
from tools.image.python import Python

NAME = "hami-plugin-scheduler"
PLAIN = "plain-scheduler"
ACCOUNT = f"system:serviceaccount:{helm.NAMESPACE}:{NAME}"
TOKEN = "scale-token"
URL, OURS = "https://127.0.0.1:443", "https://127.0.0.1:9398"
UNLIMITED = {"qps": 5000, "burst": 5000}
SETTLED_S, PLACED_S, START_S, SHORT_S = 3.0, 240.0, 60, 30
DIRECT = 200
"""So many filters are asked with the names of all nodes: kube-scheduler asks about a part of a large cluster only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One time that the pods were placed: how many a second, and the CPU that each process took for it."""

    title: str
    rate: float
    cpu: Mapping[str, float]

    def __str__(self) -> str:
        used = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.cpu.items())
        return f"{self.title:52} {self.rate:7.1f} pods/s   CPU s: {used}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The servers, and a client beside them."""

    enclosure: Enclosure
    servers: Mapping[str, Server]
    api: Api
    size: Size
    say: Say

    async def run(self, title: str, scheduler: str, limits: Mapping[str, str], more: Mapping[str, int]) -> Run:
        """Let a scheduler place the pods, which wait for it. The rate is from the first that is bound to the last."""
        names = [f"{title.split(maxsplit=1)[0].strip(',')}-{number:05}" for number in range(self.size.placed)]
        pods = (scale.manifest(name, limits, scheduler=scheduler) for name in names)
        await self.api.create(scale.PODS_PATH, pods)
        daemons = HollowDaemons(self.api, nvidia())
        async with daemons.working():
            kube = Server(
                enclosure=self.enclosure,
                name=f"kube-scheduler-{names[0]}",
                command=("/programs/kube-scheduler", f"--config=/run/{scheduler}.yaml", "--cert-dir=/run/scheduler"),
            )
            kube.start()
            try:
                await self._until(lambda: bool(daemons.bound), kube)
                pids = {name: server.pid for name, server in (*self.servers.items(), ("kube-scheduler", kube))}
                pids |= more
                before = {name: cpu_seconds(pid) for name, pid in pids.items()}
                await self._until(lambda: len(daemons.bound) >= len(names), kube)
                used = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
            finally:
                await asyncio.to_thread(kube.end)
        times = sorted(daemons.bound[name] for name in names)
        return Run(title=title, rate=(len(times) - 1) / (times[-1] - times[0]), cpu=used)

    async def _until(self, holds: Callable[[], bool], server: Server) -> None:
        try:
            async with asyncio.timeout(PLACED_S):
                while not holds():
                    if not server.runs():
                        raise LackingError(f"{server.name} has ended: {server.tail()}")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise LackingError(f"not all pods were placed within {PLACED_S:g} s: {server.tail()}") from None


def place(size: Size, say: Say) -> str:
    """Return the table."""
    kubernetes = versions.chosen()
    tree, machine = servers_of(kubernetes, say)
    with contextlib.ExitStack() as ends:
        enclosure = ends.enter_context(enclosed(tree, machine=machine))
        ground.lay(enclosure, kubernetes)
        _add_account(enclosure)
        network = Network(enclosure.first_pid)
        ends.callback(network.close)
        lines = commands(kubernetes)
        servers = {}
        for name in ("etcd", "apiserver"):
            more = ("--disable-admission-plugins=TaintNodesByCondition",) if name == "apiserver" else ()
            servers[name] = Server(enclosure=enclosure, name=name, command=(*lines[name], *more))
            ends.callback(_halt, servers[name])
            servers[name].start()
        authority = enclosure.path(f"{KEYS}/ca.crt").read_text()
        caller = Caller(network, authority)
        until(caller.is_up, "the API server", START_S)
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="hami-scale-")))
        arguments = _chart(caller, enclosure, folder)
        return network.run(lambda: asyncio.run(_placed(enclosure, servers, folder, arguments, size, say)))


async def _placed(
    enclosure: Enclosure, servers: Mapping[str, Server], folder: Path, arguments: Sequence[str], size: Size, say: Say
) -> str:
    headers = {"Authorization": "Bearer admin-token"}
    connector = aiohttp.TCPConnector(limit=0, ssl=False)
    timeout = aiohttp.ClientTimeout(total=scale.HURRY_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:
        api = Api(URL, session)
        family = nvidia()
        began = time.monotonic()
        await api.create(scale.NODES_PATH, scale.nodes(size.nodes, family))
        await api.create(scale.PODS_PATH, scale.bound_pods(size, family, random.Random(1)))
        say(f"{size} are there after {time.monotonic() - began:.0f} s")
        cluster = Cluster(enclosure=enclosure, servers=servers, api=api, size=size, say=say)
        runs = [await cluster.run("alone, without devices", PLAIN, {}, {})]
        say(str(runs[-1]))
        runs.append(await cluster.run("unlimited, alone, without devices", f"{PLAIN}-unlimited", {}, {}))
        say(str(runs[-1]))
        kubeconfig, interpreter = folder / "kubeconfig", _shipped(say)
        async with scale.scheduler(kubeconfig, session, *arguments, url=OURS, interpreter=interpreter) as process:
            say(f"our process is ready after {process.ready:.2f} s, {process.cpu:.2f} s of a CPU")
            runs.append(await cluster.run("ours, with devices", "hami-scheduler", scale.SHARE, {"ours": process.pid}))
            say(str(runs[-1]))
            told = await _metrics(session, process)
            asked, calls = _asked(told), _calls(told, size.placed)
            resident, peak = memory(process.pid).resident, peak_memory(process.pid)
            direct = await _direct(api, process, size)
        filters, binds = Spread.of(direct.filters[1:]), Spread.of(direct.binds)
        lines = [
            f"{size}, {size.placed:,} pods placed, Kubernetes {versions.chosen().version}",
            *map(str, runs),
            f"ours beside kube-scheduler alone: {runs[2].rate / runs[0].rate:.2f}",
            f"ours beside one that is not held back: {runs[2].rate / runs[1].rate:.2f}",
            f"ready after {process.ready:.2f} s, {process.cpu:.2f} s of a CPU",
            f"resident: {process.resident:.0f} MiB when ready, {resident:.0f} at the end, {peak:.0f} at most",
            f"asked by kube-scheduler: {asked}",
            f"calls of the API server, for each pod placed: {calls}",
            f"filter, {size.nodes:,} nodes by name: {filters}; the first {1000 * direct.filters[0]:.0f} ms",
            f"bind beside it: {binds}",
        ]
        return "\n".join(lines)


def _shipped(say: Say) -> Interpreter:
    """The image's own Python: Debian's is compiled for speed, which one that a developer has built need not be."""
    python = Python(root=debian.kept_in(build.cache() / "base", say))
    return Interpreter(command=python.command, environment={"PYTHONHOME": python.home})


async def _direct(api: Api, process: Running, size: Size) -> scale.Placed:
    """Filters about every node, one after the other, and their binds."""
    async with HollowDaemons(api, nvidia()).working():
        few = Size(nodes=size.nodes, bound=size.bound, placed=min(DIRECT, size.placed))
        return await scale.place(api, process.url, process.pid, few)


async def _metrics(session: aiohttp.ClientSession, process: Running) -> str:
    async with session.get(f"{process.probes}/metrics") as answer:
        return await answer.text()


def _asked(text: str) -> str:
    """What our metrics say of the calls that were answered so far."""
    told = []
    for path in ("/filter", "/bind"):
        pattern = rf'hami_plugin_scheduler_request_seconds_bucket{{le="(.+?)",path="{path}"}} (\S+)'
        buckets = [(float(bound), float(count)) for bound, count in re.findall(pattern, text)]
        told.append(f"{path} p50 {_quantile(buckets, 0.5)}, p99 {_quantile(buckets, 0.99)}")
    return "; ".join(told)


def _calls(text: str, placed: int) -> str:
    """What our metrics say of the calls that were made so far, but for lists and watches."""
    pattern = r'hami_plugin_api_calls_total\{kind="(.+?)",outcome="(.+?)",verb="(.+?)"\} (\S+)'
    made = [(f"{verb} {kind} {outcome}", float(count)) for kind, outcome, verb, count in re.findall(pattern, text)]
    counted = [f"{call} {count / placed:.2f}" for call, count in sorted(made) if not call.startswith(("list", "watch"))]
    return ", ".join(counted)


def _quantile(buckets: Sequence[tuple[float, float]], share: float) -> str:
    """Between the bounds of its bucket, as Prometheus has it."""
    wanted, (low, below) = share * buckets[-1][1], (0.0, 0.0)
    for bound, count in buckets:
        if count >= wanted:
            inside = (wanted - below) / (count - below) if count > below else 1.0
            return f"{1000 * (low + (bound - low) * inside):.0f} ms (in {1000 * low:g} to {1000 * bound:g})"
        low, below = bound, count
    return "?"


def _add_account(enclosure: Enclosure) -> None:
    """Our process calls as the chart's service account does."""
    tokens = enclosure.path(f"{KEYS}/tokens.csv")
    groups = f'"system:serviceaccounts,system:serviceaccounts:{helm.NAMESPACE},system:authenticated"'
    with tokens.open("a") as file:
        file.write(f"{TOKEN},{ACCOUNT},scale-uid,{groups}\n")


def _chart(caller: Caller, enclosure: Enclosure, folder: Path) -> list[str]:
    """Create what the chart renders of rights, write what it configures, and return our container's options."""
    release = helm.rendered({}, version=versions.chosen().version)
    for namespace in (helm.NAMESPACE, scale.NAMESPACE):
        caller.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        account = {"metadata": {"name": "default"}}
        caller.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        for one in release.kind(kind):
            if one["metadata"]["name"].startswith(NAME):
                caller.call("POST", f"/apis/rbac.authorization.k8s.io/v1/{kind.lower()}s", one)
    (data,) = (one["data"] for one in release.kind("ConfigMap") if one["metadata"]["name"] == NAME)
    _certificate(enclosure, folder)
    for name in ("config.yaml", "device-config.yaml"):
        (folder / name).write_text(data[name])
    _configure(enclosure, yaml.safe_load(data["kube-scheduler.yaml"]))
    cluster = {"server": URL, "certificate-authority": str(folder / "ca.crt")}
    (folder / "kubeconfig").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": TOKEN}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    (deployment,) = (one for one in release.kind("Deployment") if one["metadata"]["name"] == NAME)
    containers = deployment["spec"]["template"]["spec"]["containers"]
    (ours,) = (one["args"] for one in containers if one["name"] == "hami-plugin")
    moved = [word.replace("/etc/hami-plugin/", f"{folder}/").replace("=/tls/", f"={folder}/") for word in ours]
    return [*moved[1:], f"--listen={OURS.removeprefix('https://')}"]


def _certificate(enclosure: Enclosure, folder: Path) -> None:
    """The chart's certificate, by the cluster's own authority: for the Service's name."""
    name = f"{NAME}.{helm.NAMESPACE}.svc"
    script = f"""cd {KEYS} && openssl ecparam -name prime256v1 -genkey -noout -out scale.key
        openssl req -new -key scale.key -subj /CN={NAME} -out scale.csr
        echo subjectAltName=DNS:{name} >scale.names
        openssl x509 -req -in scale.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3 \\
            -extfile scale.names -out scale.crt
        mkdir -p /tls && cp ca.crt /tls/ca.crt"""
    done = enclosure.run("sh", "-euc", script, deadline_s=SHORT_S)
    if done.returncode:
        raise LackingError(f"no certificate: {done.stderr}")
    for source, target in (("scale.crt", "tls.crt"), ("scale.key", "tls.key"), ("ca.crt", "ca.crt")):
        (folder / target).write_bytes(enclosure.path(f"{KEYS}/{source}").read_bytes())


def _configure(enclosure: Enclosure, configured: dict[str, Any]) -> None:
    """kube-scheduler as the chart configures it, outside of a pod; and the same without the extender."""
    configured["clientConnection"] = {"kubeconfig": f"{KEYS}/scheduler.kubeconfig"}
    configured["leaderElection"] = {"leaderElect": False}
    enclosure.write("/run/hami-scheduler.yaml", yaml.safe_dump(configured))
    for name, more in ((PLAIN, {}), (f"{PLAIN}-unlimited", UNLIMITED)):
        alone = {key: value for key, value in configured.items() if key != "extenders"}
        alone["profiles"] = [{"schedulerName": name}]
        alone["clientConnection"] = {**configured["clientConnection"], **more}
        enclosure.write(f"/run/{name}.yaml", yaml.safe_dump(alone))


def _halt(server: Server) -> None:
    with contextlib.suppress(ProcessLookupError):
        server.end()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.realnode.scale", description=__doc__)
    for name, default in (("nodes", 5000), ("bound", 20_000), ("placed", 2000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    size = Size(nodes=options.nodes, bound=options.bound, placed=options.placed)
    return telling.main(lambda say: place(size, say), absent="No real servers here")


if __name__ == "__main__":
    sys.exit(main())
