"""An API server as far as Helm asks it: which version and kinds it has, what is there, and what Helm applies."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Object = dict[str, Any]

KINDS = {
    "v1": ("Namespace/", "ServiceAccount", "ConfigMap", "Secret", "Service"),
    "apps/v1": ("DaemonSet", "Deployment"),
    "rbac.authorization.k8s.io/v1": ("ClusterRole/", "ClusterRoleBinding/", "Role", "RoleBinding"),
    "admissionregistration.k8s.io/v1": ("MutatingWebhookConfiguration/",),
    "cert-manager.io/v1": ("Issuer", "Certificate"),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "monitoring.coreos.com/v1": ("PodMonitor",),
}
POLICIES = ("ValidatingAdmissionPolicy/", "ValidatingAdmissionPolicyBinding/")
"""A slash marks a kind without namespaces."""
CLAIMS = (1, 34)
"""The first version that has ResourceClaims."""


def plural(kind: str) -> str:
    """The resource of a kind."""
    name = kind.lower()
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"


class StandIn:
    """``objects`` are those that Helm has applied, by path. ``policies``: has ValidatingAdmissionPolicy."""

    def __init__(self, version: str, *, policies: bool) -> None:
        self.version = version
        self.kinds = {group: list(kinds) for group, kinds in KINDS.items()}
        if policies:
            self.kinds["admissionregistration.k8s.io/v1"] += POLICIES
        if tuple(map(int, version.removeprefix("v").split(".")[:2])) >= CLAIMS:
            self.kinds["resource.k8s.io/v1"] = ["DeviceClass/"]
        self.objects: dict[str, Object] = {}
        self.url = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Object]:
        if method == "GET":
            found = self._discovery(path) or self.objects.get(path)
            return (200, found) if found else (404, {"kind": "Status", "reason": "NotFound", "code": 404})
        if method == "DELETE":
            return 200, self.objects.pop(path, {})
        self.objects[path] = json.loads(body)
        return 200, self.objects[path]

    def _discovery(self, path: str) -> Object | None:
        if path == "/version":
            major, minor = self.version.removeprefix("v").split(".")[:2]
            return {"major": major, "minor": minor, "gitVersion": self.version}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = [self._group(*group.split("/")) for group in self.kinds if group != "v1"]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        version = path.removeprefix("/apis/").removeprefix("/api/")
        if version in self.kinds:
            resources = [self._resource(kind) for kind in self.kinds[version]]
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
        return None

    @staticmethod
    def _group(name: str, version: str) -> Object:
        versions = {"groupVersion": f"{name}/{version}", "version": version}
        return {"name": name, "versions": [versions], "preferredVersion": versions}

    @staticmethod
    def _resource(kind: str) -> Object:
        name = kind.removesuffix("/")
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        return {"name": plural(name), "kind": name, "namespaced": name == kind, "verbs": verbs}


@contextmanager
def serving(stand_in: StandIn) -> Iterator[StandIn]:
    """The stand-in on a port of its own, at ``url``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two writes; the second must not wait for an answer

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = stand_in.answer(self.command, self.path.partition("?")[0], body)
            payload = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_any  # noqa: N815  # as http.server calls them

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="stand-in", daemon=True)
    thread.start()
    stand_in.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stand_in
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def kubeconfig(url: str, *, authority: bytes = b"", token: str = "") -> str:
    """How to reach an API server, as a kubeconfig: the stand-in, or one that has a certificate and knows callers."""
    trusted = {"certificate-authority-data": b64encode(authority).decode()} if authority else {}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url, **trusted}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": token} if token else {}}],
            "current-context": "c",
        }
    )
