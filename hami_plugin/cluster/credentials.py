"""Who this daemon is to the API server, and how that stays true when tokens rotate."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import pathsep
from pathlib import Path
from typing import Protocol

import yaml

from hami_plugin.errors import ClusterError, ConfigError

from .bare import ConfigException, Configuration, InClusterConfigLoader, load_kube_config

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
KUBECONFIG = "KUBECONFIG"
SERVICE_HOST = "KUBERNETES_SERVICE_HOST"

# What the library's loader raises on files of a wrong shape, besides its own ConfigException.
_MALFORMED = (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, AttributeError, KeyError)


class Credentials(Protocol):
    """Address, certificates and a token."""

    @property
    def configuration(self) -> Configuration: ...

    def authorization(self) -> str:
        """The present ``Authorization`` header; empty when certificates alone identify us."""

    async def renew(self) -> None:
        """The server did not accept us, or we did not accept it: read all again from where it came."""

    async def follow(self) -> None:
        """Read again what has changed at its source. ``ClusterError`` while that cannot be used."""


class KubeconfigCredentials:
    """A kubeconfig file: tokens, token files, certificates and exec plug-ins, as the library reads them."""

    def __init__(self, path: str, configuration: Configuration) -> None:
        self._path = path
        self._configuration = configuration
        self._seen: list[tuple[int, int, int]] = []

    @classmethod
    async def load(cls, path: str) -> KubeconfigCredentials:
        """Read ``path`` (or several, separated as in ``$KUBECONFIG``). ``ConfigError`` when it cannot be used."""
        if not _files(path):
            raise ConfigError([f"kubeconfig {path!r}: no such file; correct --kubeconfig or ${KUBECONFIG}"])
        credentials = cls(path, Configuration())
        try:
            await credentials.renew()
        except ClusterError as error:
            raise ConfigError([str(error)]) from error
        return credentials

    @property
    def configuration(self) -> Configuration:
        return self._configuration

    def authorization(self) -> str:
        return str(self._configuration.api_key.get("BearerToken", "")).strip()

    async def follow(self) -> None:
        if self._stamps() != self._seen:
            await self.renew()

    async def renew(self) -> None:
        seen = self._stamps()
        try:
            await load_kube_config(self._path, client_configuration=self._configuration, persist_config=False)
        except _MALFORMED as error:
            raise ClusterError(
                f"kubeconfig {self._path!r} cannot be used: {error or type(error).__name__}",
                hint="check it with `kubectl --kubeconfig … config view`",
            ) from error
        self._seen = seen

    def _stamps(self) -> list[tuple[int, int, int]]:
        found = [path.stat() for path in _files(self._path)]
        return [(one.st_ino, one.st_mtime_ns, one.st_size) for one in found]


class ServiceAccountCredentials:
    """A pod's own account. The kubelet replaces the token file about hourly; each call looks whether it did."""

    def __init__(self, configuration: Configuration, token: Path) -> None:
        self._configuration = configuration
        self._token = token
        self._seen: tuple[int, int] | None = None
        self._authorization = ""

    @classmethod
    def load(cls, directory: Path, environ: Mapping[str, str]) -> ServiceAccountCredentials:
        """Take address and CA from the pod. ``ConfigError`` when the account is not mounted."""
        configuration, token = Configuration(), directory / "token"
        loader = InClusterConfigLoader(
            token_filename=str(token),
            cert_filename=str(directory / "ca.crt"),
            try_refresh_token=False,  # it goes by the wall clock; we look at the file itself
            environ=environ,
        )
        try:
            loader.load_and_set(configuration)
        except (ConfigException, OSError) as error:
            raise ConfigError(
                [f"service account in {directory}: {error}; set automountServiceAccountToken, or give a kubeconfig"]
            ) from error
        return cls(configuration, token)

    @property
    def configuration(self) -> Configuration:
        return self._configuration

    def authorization(self) -> str:
        """The token of this moment. A file that cannot be read leaves the last one in use."""
        try:
            stat = self._token.stat()
            if self._seen != (seen := (stat.st_ino, stat.st_mtime_ns)):
                self._authorization = f"Bearer {self._token.read_text(encoding='utf-8').strip()}"
                self._seen = seen
        except OSError as error:
            if not self._authorization:
                raise ClusterError(f"service account token {self._token} cannot be read: {error}") from error
        return self._authorization

    async def renew(self) -> None:
        self._seen = None

    async def follow(self) -> None:
        """The token is looked at whenever it is used, and certificates by whoever uses them."""


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


def _files(path: str) -> list[Path]:
    parts = (Path(part).expanduser() for part in path.split(pathsep) if part)
    return [part for part in parts if part.is_file()]
