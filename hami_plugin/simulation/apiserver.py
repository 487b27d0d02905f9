"""A Kubernetes API server that is real enough for daemons and schedulers: HTTP, versions, watches, refusals, faults."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from ssl import SSLContext
from typing import Any, Self

from aiohttp import web

from .api_faults import Fault, Faults, Order
from .api_http import ApiHttp, Request
from .api_kinds import RESOURCES, Filter, Object
from .api_objects import ObjectStore


class SimulatedApiServer:
    """Nodes, pods, quotas and events over HTTP on 127.0.0.1. Use it as ``async with``; all runs on one event loop."""

    def __init__(self, *, port: int = 0, bookmark_seconds: float = 60.0, ssl: SSLContext | None = None) -> None:
        self.store = ObjectStore()
        self.faults = Faults()
        self._http = ApiHttp(self.store, self.faults, bookmark_seconds)
        self._port = port
        self._ssl = ssl
        self._runner: web.AppRunner | None = None

    # -- life

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self._port}"

    @property
    def requests(self) -> deque[Request]:
        """What was asked, oldest first. An open watch is listed from its beginning."""
        return self._http.requests

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._runner.server.connections) if self._runner and self._runner.server else 0

    async def accept(self) -> None:
        """Listen; after ``refuse`` on the same port."""
        app = self._http.application()
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._ssl, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def refuse(self) -> None:
        """Stop listening and drop every connection. Objects stay."""
        self.drop_watches()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def trust(self, *tokens: str) -> None:
        """Accept only these bearer tokens from now on. At first everybody is let in."""
        self._http.tokens = frozenset(tokens)

    def write_kubeconfig(self, path: Path, *, token: str = "", token_file: Path | None = None) -> Path:
        """A kubeconfig that leads here. JSON is YAML."""
        user = {"token": token} if token else {"tokenFile": str(token_file)} if token_file else {}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "simulated", "cluster": {"server": self.url}}],
            "users": [{"name": "daemon", "user": user}],
            "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "daemon"}}],
            "current-context": "simulated",
        }
        path.write_text(json.dumps(config, indent=1), encoding="utf-8")
        return path

    # -- objects, for the other parts of a simulation

    def create_node(self, name: str, *, labels: Mapping[str, str] | None = None, **status: Any) -> Object:
        meta = {"name": name, **({"labels": dict(labels)} if labels else {})}
        return self.store.create(RESOURCES["nodes"], "", {"metadata": meta, "status": status})

    def delete_node(self, name: str) -> None:
        self.store.delete(("nodes", "", name))

    def create_pod(self, manifest: Mapping[str, Any]) -> Object:
        return self.store.create(RESOURCES["pods"], "", manifest)

    def create_quota(self, namespace: str, name: str, hard: Mapping[str, str]) -> Object:
        manifest = {"metadata": {"name": name}, "spec": {"hard": dict(hard)}}
        return self.store.create(RESOURCES["resourcequotas"], namespace, manifest)

    def bind(self, namespace: str, name: str, node: str) -> Object:
        return self.store.bind(namespace, name, node)

    def set_phase(self, namespace: str, name: str, phase: str) -> Object:
        return self.store.patch(("pods", namespace, name), {"status": {"phase": phase}}, part="status")

    def annotate_pod(self, namespace: str, name: str, changes: Mapping[str, str | None]) -> Object:
        return self.store.patch(("pods", namespace, name), {"metadata": {"annotations": dict(changes)}})

    def annotate_node(self, name: str, changes: Mapping[str, str | None]) -> Object:
        return self.store.patch(("nodes", "", name), {"metadata": {"annotations": dict(changes)}})

    def delete_pod(self, namespace: str, name: str, *, grace: int = 0) -> None:
        """With ``grace`` seconds the pod is only marked, until it is deleted once more without."""
        self.store.delete(("pods", namespace, name), grace=grace)

    def pods(self) -> list[Object]:
        return [item for _, item in self.store.select(Filter(resource=RESOURCES["pods"]))]

    def node(self, name: str) -> Object:
        return self.store.get("nodes", "", name)

    def pod(self, namespace: str, name: str) -> Object:
        return self.store.get("pods", namespace, name)

    def events(self) -> list[Object]:
        return [item for _, item in self.store.select(Filter(resource=RESOURCES["events"]))]

    # -- faults

    def error(
        self,
        status: int,
        *,
        count: int | None = 1,
        match: str = "",
        retry_after: float | None = None,
        message: str = "simulated",
    ) -> None:
        """Answer ``status`` to the next ``count`` requests (None: until ``heal``) whose ``VERB /path`` matches."""
        self._order(Fault.ERROR, match, count, status=status, retry_after=retry_after, message=message)

    def hang(self, match: str = "", *, count: int | None = None) -> None:
        """Read requests and never answer, until ``heal``."""
        self._order(Fault.HANG, match, count)

    def truncate_next(self, match: str = "") -> None:
        """Cut the next answer in half; of a watch, the next line, and then the stream ends."""
        self._order(Fault.TRUNCATE, match, 1)

    def lose_next_patch(self, match: str = "") -> None:
        """Answer the next PATCH with 200 and the right object, and store nothing."""
        self._order(Fault.LOSE, match, 1)

    def edit(self, edit: Callable[[bytes], bytes], match: str = "", *, count: int | None = None) -> None:
        """Let ``edit`` change the bytes of answers to ``VERB /path``, and of each line of a watch, ``WATCH /path``."""
        self._order(Fault.EDIT, match, count, edit=edit)

    def stall_watches(self) -> None:
        """The watches that are open say nothing more, and their connections stay. Those that come later are well."""
        self._http.stall_watches()

    def observe(self, observer: Callable[[web.Request], None]) -> None:
        """Show every request to ``observer`` before it is answered."""
        self._http.observers.append(observer)

    def heal(self) -> None:
        self.faults.clear()

    def drop_watches(self) -> None:
        """Cut the connections of all open watches."""
        self._http.drop_watches()

    def expire_watches(self) -> None:
        """End each open watch with an ERROR event, 410."""
        self._http.expire_watches()

    def compact(self, *, as_http: bool = False) -> None:
        """Forget all history: watches from an older version get 410, as an ERROR event or as the HTTP status."""
        self._http.gone_as_http = as_http
        self.store.compact()

    def count(self, match: str = "", *, since: float = 0.0) -> int:
        """How many requests' ``VERB /path?query`` matched."""
        pattern = re.compile(match)
        return sum(1 for request in self.requests if request.at >= since and pattern.search(str(request)))

    def _order(self, fault: Fault, match: str, count: int | None, **more: Any) -> None:
        self.faults.add(Order(fault=fault, match=re.compile(match), left=count, **more))


async def serve(port: int, kubeconfig: Path | None) -> None:
    """Run until SIGINT or SIGTERM; the address is the first line of standard output."""
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with SimulatedApiServer(port=port) as server:
        if kubeconfig is not None:
            server.write_kubeconfig(kubeconfig)
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hami_plugin.simulation.apiserver", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig that leads to this server")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.kubeconfig))


if __name__ == "__main__":
    main()
