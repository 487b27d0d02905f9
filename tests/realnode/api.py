"""The API server as a test asks it: plain HTTPS, from a thread that is in the node's network."""

import ctypes
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tests.realnode.servers import until

MERGE = "application/merge-patch+json"
CALL_S = 20
ADMIN = "admin-token"
NEW_NETWORK = 0x40000000  # CLONE_NEWNET of sched(7)
Object = dict[str, Any]
T = TypeVar("T")


class ApiError(Exception):
    """The server's refusal; ``status`` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Network:
    """The network of another process: ``get`` and ``ask`` go out from there."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._inside = ThreadPoolExecutor(4, "in-the-node", self._enter)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def _enter(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = os.open(f"/proc/{self._pid}/ns/net", os.O_RDONLY)
        try:
            if libc.setns(descriptor, NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "the node's network cannot be entered")
        finally:
            os.close(descriptor)

    def ask(self, request: urllib.request.Request, context: ssl.SSLContext | None = None) -> tuple[int, bytes]:
        """Return status and body, whatever the status. ``OSError`` when nobody answers."""
        return self._inside.submit(self._ask, request, context).result()

    def _ask(self, request: urllib.request.Request, context: ssl.SSLContext | None) -> tuple[int, bytes]:
        handlers = [urllib.request.ProxyHandler({})]
        if context:
            handlers.append(urllib.request.HTTPSHandler(context=context))
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=CALL_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read()

    def get(self, url: str) -> str:
        return self.ask(urllib.request.Request(url))[1].decode()

    def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` does in there: its connections and its processes are of that network."""
        return self._inside.submit(work).result()

    def close(self) -> None:
        self._inside.shutdown()


class Api:
    """What the cases ask. As the simulated API server it serves the simulated scheduler, too."""

    def __init__(self, network: Network, authority: str, token: str = ADMIN) -> None:
        self._network = network
        self._authority = authority
        self._token = token
        self._context = ssl.create_default_context(cadata=authority)

    def as_bearer(self, token: str) -> "Api":
        return Api(self._network, self._authority, token)

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """Return the decoded answer; ``ApiError`` for a refusal."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind, "Accept": "application/json"}
        request = urllib.request.Request(f"https://127.0.0.1:443{path}", data, headers, method=method)
        status, answer = self._network.ask(request, self._context)
        if status >= 300:
            raise ApiError(status, answer.decode(errors="replace")[:600])
        return json.loads(answer) if answer[:1] in (b"{", b"[") else answer.decode()

    def is_up(self) -> bool:
        try:
            return self.call("GET", "/readyz") == "ok"
        except (OSError, ApiError):
            return False

    def create_pod(self, manifest: Mapping[str, Any]) -> Object:
        namespace = manifest["metadata"]["namespace"]
        return self.call(
            "POST", f"/api/v1/namespaces/{namespace}/pods", {"apiVersion": "v1", "kind": "Pod", **manifest}
        )

    def annotate_pod(self, namespace: str, name: str, changes: Mapping[str, str | None]) -> Object:
        body = {"metadata": {"annotations": dict(changes)}}
        return self.call("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}", body, MERGE)

    def annotate_node(self, name: str, changes: Mapping[str, str | None]) -> Object:
        return self.call("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": dict(changes)}}, MERGE)

    def bind(self, namespace: str, name: str, node: str) -> Object:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", body)
        return self.pod(namespace, name)

    def pods(self) -> list[Object]:
        return self.call("GET", "/api/v1/pods")["items"]

    def pod(self, namespace: str, name: str) -> Object:
        return self.call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")

    def find_pod(self, namespace: str, name: str) -> Object | None:
        try:
            return self.pod(namespace, name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def node(self, name: str) -> Object:
        return self.call("GET", f"/api/v1/nodes/{name}")

    def events(self, namespace: str, name: str) -> list[Object]:
        """Return the Events about an object of this name."""
        query = urllib.parse.urlencode({"fieldSelector": f"involvedObject.name={name}"})
        return self.call("GET", f"/api/v1/namespaces/{namespace}/events?{query}")["items"]

    def log(self, namespace: str, name: str, container: str) -> str:
        return self.call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}/log?container={container}")

    def delete_pod(self, namespace: str, name: str, *, grace_s: int = 0, within_s: float = 60) -> None:
        """Delete it, and wait until it is gone."""
        try:
            self.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds={grace_s}")
        except ApiError as error:
            if error.status != 404:
                raise
        until(lambda: self.find_pod(namespace, name) is None, f"the end of pod {name}", within_s)
