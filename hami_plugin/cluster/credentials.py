"""The address, certificates and identity for the API server, from a kubeconfig or a pod's service account.

Tokens and certificates rotate: ``Credentials`` are renewed as their files change.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import os
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os.path import pathsep
from pathlib import Path
from typing import Any, Protocol

import yaml

from hami_plugin.errors import ClusterError, ConfigError
from hami_plugin.host.bounded_yaml import read_yaml

MAX_BYTES = 4 << 20
"""Maximum size of a kubeconfig. One with a hundred clusters and their certificates is smaller."""
SERVICE_HOST, SERVICE_PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"

Pem = Path | bytes | None
"""A certificate or a key: a file that may be replaced, or what the kubeconfig itself holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """``authorization`` is the header's value. ``server_name`` is whom the server's certificate must be for."""

    host: str
    authority: Pem = None
    certificate: Pem = None
    key: Pem = None
    verified: bool = True
    server_name: str = ""
    proxy: str = ""
    authorization: str = ""

    @property
    def connected_by(self) -> tuple[object, ...]:
        """All that a connection keeps from its beginning to its end."""
        return (
            self.host,
            self.authority,
            self.certificate,
            self.key,
            self.verified,
            self.server_name,
            self.proxy,
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """Those that may be replaced while we use them."""
        return tuple(pem for pem in (self.authority, self.certificate, self.key) if isinstance(pem, Path))

    def context(self) -> ssl.SSLContext | None:
        """TLS by these certificates; None where the address wants none. OSError or ValueError if they are no use."""
        if not self.host.startswith("https:"):
            return None
        context = ssl.create_default_context(
            cafile=self.authority if isinstance(self.authority, Path) else None,
            cadata=self.authority.decode("ascii") if isinstance(self.authority, bytes) else None,
        )
        if self.certificate is not None:
            with tempfile.TemporaryDirectory() as folder:  # OpenSSL reads it from files only
                certificate = _as_file(self.certificate, Path(folder, "certificate"))
                context.load_cert_chain(certificate, self.key and _as_file(self.key, Path(folder, "key")))
        if not self.verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@contextmanager
def without_system_authorities() -> Iterator[None]:
    """Within, OpenSSL finds no certificate authorities of the system.

    aiohttp makes two TLS contexts when it is imported and reads all authorities into each: a tenth of a daemon's start,
    for contexts that nobody uses. Ours come from ``Access.context``.
    """
    paths = ssl.get_default_verify_paths()
    names = (paths.openssl_cafile_env, paths.openssl_capath_env)
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, os.devnull))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


def of_account(directory: Path, environ: Mapping[str, str]) -> Access:
    """A pod's own account: the token is in a file that the kubelet replaces, so it is not in here.

    ``ValueError`` or OSError says what is missing.
    """
    host, port = environ.get(SERVICE_HOST, ""), environ.get(SERVICE_PORT, "")
    if not host or not port:
        raise ValueError(f"${SERVICE_HOST} or ${SERVICE_PORT} is empty")
    for name in ("token", "ca.crt"):
        if not (directory / name).read_bytes().strip():
            raise ValueError(f"{name} is empty")
    address = f"[{host}]" if ":" in host else host
    return Access(host=f"https://{address}:{port}", authority=directory / "ca.crt")


def kubeconfig_files(path: str) -> list[Path]:
    """The files of a ``$KUBECONFIG``, which may be several."""
    parts = (Path(part).expanduser() for part in path.split(pathsep) if part)
    return [part for part in parts if part.is_file()]


async def of_kubeconfig(path: str) -> Access:
    """What the current context says. ``ValueError``, OSError or ``yaml.YAMLError`` where it cannot be used.

    A user that gets credentials from a plug-in is read by the ``kubernetes`` package, which is imported for nobody
    else: it brings 16 MiB.
    """
    merged = _merged(kubeconfig_files(path))
    if merged.user.keys() & {"exec", "auth-provider"}:
        return await _by_plugin(path, merged.context)
    cluster, user = merged.cluster, merged.user
    secure = _text(cluster, "server").startswith("https:")
    return Access(
        host=_text(cluster, "server").rstrip("/"),
        authority=_pem(cluster, "certificate-authority", merged.cluster_folder) if secure else None,
        certificate=_pem(user, "client-certificate", merged.user_folder) if secure else None,
        key=_pem(user, "client-key", merged.user_folder) if secure else None,
        verified=not cluster.get("insecure-skip-tls-verify"),
        server_name=_text(cluster, "tls-server-name"),
        proxy=_text(cluster, "proxy-url"),
        authorization=_authorization(user, merged.user_folder),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merged:
    """The current context, and where relative paths of its cluster and its user begin."""

    context: str
    cluster: Mapping[str, Any]
    cluster_folder: Path
    user: Mapping[str, Any]
    user_folder: Path


def _merged(paths: Iterable[Path]) -> _Merged:
    """As kubectl merges files: what is there first counts."""
    context, named = "", {"clusters": {}, "users": {}, "contexts": {}}  # type: tuple[str, dict[str, dict[str, Any]]]
    for path in paths:
        document = _document(path)
        context = context or _text(document, "current-context")
        for kind, known in named.items():
            for item in _list(document, kind):
                value = _map(item, kind.removesuffix("s"))
                known.setdefault(_text(item, "name"), (value, path.absolute().parent))
    if not context:
        raise ValueError("it has no current-context")
    chosen, _ = _named(named["contexts"], "context", context)
    cluster, cluster_folder = _named(named["clusters"], "cluster", _text(chosen, "cluster"))
    if not _text(cluster, "server"):
        raise ValueError(f"cluster {_text(chosen, 'cluster')!r} has no server")
    user, user_folder = named["users"].get(_text(chosen, "user"), ({}, Path()))
    return _Merged(context=context, cluster=cluster, cluster_folder=cluster_folder, user=user, user_folder=user_folder)


def _document(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
    document = read_yaml(data.decode("utf-8-sig"))
    if not isinstance(document, Mapping):
        raise ValueError(f"{path} is not a mapping")  # noqa: TRY004  # the text is wrong, not our types
    return document


def _named(known: Mapping[str, Any], kind: str, name: str) -> Any:
    if name not in known:
        raise ValueError(f"it has no {kind} named {name!r}")
    return known[name]


def _authorization(user: Mapping[str, Any], folder: Path) -> str:
    token = _text(user, "token")
    if not token and (file := _text(user, "tokenFile")):
        token = (folder / file).read_text(encoding="utf-8")
    if token.strip():
        return f"Bearer {token.strip()}"
    if user.get("username") and user.get("password"):
        pair = f"{_text(user, 'username')}:{_text(user, 'password')}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"
    return ""


def _pem(parent: Mapping[str, Any], key: str, folder: Path) -> Pem:
    """Data goes before a file."""
    if data := _text(parent, f"{key}-data"):
        return base64.b64decode(data)
    if not (file := _text(parent, key)):
        return None
    found = folder / Path(file).expanduser()
    if not found.is_file():
        raise ValueError(f"{key}: there is no file {found}")
    return found


async def _by_plugin(path: str, context: str) -> Access:
    package = await asyncio.to_thread(importlib.import_module, "kubernetes.aio")
    found = package.client.Configuration()
    try:
        await package.config.load_kube_config(path, context=context, client_configuration=found, persist_config=False)
    except (package.config.ConfigException, AttributeError, KeyError, TypeError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return Access(
        host=found.host,
        authority=Path(found.ssl_ca_cert) if found.ssl_ca_cert else None,
        certificate=Path(found.cert_file) if found.cert_file else None,
        key=Path(found.key_file) if found.key_file else None,
        verified=found.verify_ssl,
        server_name=found.tls_server_name or "",
        proxy=found.proxy or "",
        authorization=str(found.api_key.get("BearerToken", "")).strip(),
    )


def _as_file(pem: Path | bytes, path: Path) -> Path:
    if isinstance(pem, bytes):
        path.touch(mode=0o600)
        path.write_bytes(pem)
        return path
    return pem


def _text(parent: Any, key: str) -> str:
    value = parent.get(key) if isinstance(parent, Mapping) else None
    return str(value) if value is not None else ""


def _map(parent: Any, key: str) -> Mapping[str, Any]:
    value = parent.get(key) if isinstance(parent, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _list(parent: Mapping[str, Any], key: str) -> list[Any]:
    value = parent.get(key)
    return value if isinstance(value, list) else []


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
KUBECONFIG = "KUBECONFIG"

Stamp = tuple[int, int, int]


class Credentials(Protocol):
    """Address, certificates and a token."""

    access: Access

    def authorization(self) -> str:
        """The present ``Authorization`` header; empty when certificates alone identify us."""

    async def renew(self) -> None:
        """Reload everything from its source, after a refusal by either side."""

    async def follow(self) -> None:
        """Reload what has changed at its source. ``ClusterError`` while it cannot be used."""


class KubeconfigCredentials:
    """A kubeconfig file: tokens, token files, certificates and credential plug-ins."""

    def __init__(self, path: str, access: Access) -> None:
        self._path = path
        self._files = kubeconfig_files(path)
        self.access = access
        self._seen = [stamp(file) for file in self._files]

    @classmethod
    async def load(cls, path: str) -> KubeconfigCredentials:
        """Read ``path`` (or several, separated as in ``$KUBECONFIG``). ``ConfigError`` when it cannot be used."""
        if not kubeconfig_files(path):
            raise ConfigError([f"kubeconfig {path!r}: no such file; correct --kubeconfig or ${KUBECONFIG}"])
        try:
            return cls(path, await _read(path))
        except ClusterError as error:
            raise ConfigError([str(error)]) from error

    def authorization(self) -> str:
        return self.access.authorization

    async def follow(self) -> None:
        if [stamp(file) for file in self._files] != self._seen:
            await self.renew()

    async def renew(self) -> None:
        files = kubeconfig_files(self._path)
        seen = [stamp(file) for file in files]
        self.access = await _read(self._path)
        self._files, self._seen = files, seen


async def _read(path: str) -> Access:
    try:
        return await of_kubeconfig(path)
    except (yaml.YAMLError, OSError, ValueError) as error:
        raise ClusterError(
            f"kubeconfig {path!r} cannot be used: {error or type(error).__name__}",
            hint="check it with `kubectl --kubeconfig … config view`",
        ) from error


class ServiceAccountCredentials:
    """A pod's own account. The kubelet replaces the token file about hourly; each call looks whether it did."""

    def __init__(self, access: Access, token: Path) -> None:
        self.access = access
        self._token = token
        self._seen: Stamp | None = None
        self._authorization = ""

    @classmethod
    def load(cls, directory: Path, environ: Mapping[str, str]) -> ServiceAccountCredentials:
        """Take address and CA from the pod. ``ConfigError`` when the account is not mounted."""
        try:
            return cls(of_account(directory, environ), directory / "token")
        except (OSError, ValueError) as error:
            raise ConfigError(
                [f"service account in {directory}: {error}; set automountServiceAccountToken, or give a kubeconfig"]
            ) from error

    def authorization(self) -> str:
        """The token of this moment. A file that cannot be read leaves the last one in use."""
        seen = stamp(self._token)
        try:
            if seen is None or seen != self._seen:
                self._authorization = f"Bearer {self._token.read_text(encoding='utf-8').strip()}"
                self._seen = seen
        except OSError as error:
            if not self._authorization:
                raise ClusterError(f"service account token {self._token} cannot be read: {error}") from error
        return self._authorization

    async def renew(self) -> None:
        self._seen = None

    async def follow(self) -> None:
        """Nothing to do: the token is read at each use, and ``Clients`` checks the certificates."""


async def find_credentials(
    kubeconfig: Path | None, environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT
) -> Credentials:
    """The given kubeconfig, else ``$KUBECONFIG``, else the pod's service account. ``ConfigError`` if none."""
    if kubeconfig is not None:
        return await KubeconfigCredentials.load(str(kubeconfig))
    if environ.get(KUBECONFIG):
        return await KubeconfigCredentials.load(environ[KUBECONFIG])
    if environ.get(SERVICE_HOST):
        return ServiceAccountCredentials.load(service_account, environ)
    problem = f"no way to the API server: no kubeconfig, ${KUBECONFIG} is empty, and ${SERVICE_HOST} is not set"
    raise ConfigError([f"{problem}; run in a pod with a service account, or give --kubeconfig"])


def stamp(path: Path) -> Stamp | None:
    """What changes with a file; None while there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  # for every call, and a Path is slow
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
