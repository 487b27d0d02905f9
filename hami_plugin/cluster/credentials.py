"""The daemon's credentials for the API server, renewed as tokens and certificates rotate."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import yaml

from hami_plugin.errors import ClusterError, ConfigError

from .access import SERVICE_HOST, Access, kubeconfig_files, of_account, of_kubeconfig

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
KUBECONFIG = "KUBECONFIG"

Stamp = tuple[int, int, int]


class Credentials(Protocol):
    """Address, certificates and a token."""

    @property
    def access(self) -> Access: ...

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
        self._access = access
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

    @property
    def access(self) -> Access:
        return self._access

    def authorization(self) -> str:
        return self._access.authorization

    async def follow(self) -> None:
        if [stamp(file) for file in self._files] != self._seen:
            await self.renew()

    async def renew(self) -> None:
        files = kubeconfig_files(self._path)
        seen = [stamp(file) for file in files]
        self._access = await _read(self._path)
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
        self._access = access
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

    @property
    def access(self) -> Access:
        return self._access

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
