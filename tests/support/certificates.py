"""Certificates for tests, made by openssl: an authority, and pairs that it signs for 127.0.0.1."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost"
KINDS = {"ec": ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"), "rsa": ("rsa:2048",)}


@dataclass(frozen=True)
class Files:
    certificate: Path
    key: Path


class Authority:
    """Signs pairs. ``certificate`` is what clients trust."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is missing, which makes certificates: apt-get install openssl")
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.certificate, self._key = folder / "ca.crt", folder / "ca.key"
        _openssl("req", "-x509", "-newkey", *KINDS["ec"], "-nodes", "-days", "2", "-subj", "/CN=test authority",
                 "-keyout", self._key, "-out", self.certificate)  # fmt: skip

    def pair(self, name: str, *, kind: str = "ec", days: int = 2, password: str = "") -> Files:
        """A pair that is valid for so many days from now. Less than 0: one that has expired."""
        made = Files(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.cnf"
        hidden = ("-passout", f"pass:{password}") if password else ("-nodes",)
        _openssl("req", "-newkey", *KINDS[kind], *hidden, "-subj", f"/CN={name}", "-keyout", made.key, "-out", request)
        extensions.write_text(NAMES + "\n", encoding="ascii")
        _openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
                 "-days", str(days), "-extfile", extensions, "-out", made.certificate)  # fmt: skip
        return made

    def fingerprint(self, pair: Files) -> str:
        """The certificate's SHA-256 in small letters."""
        said = _openssl("x509", "-in", pair.certificate, "-noout", "-fingerprint", "-sha256")
        return said.partition("=")[2].strip().replace(":", "").lower()

    def ends(self, pair: Files) -> str:
        """The end of its validity, as openssl prints it."""
        return _openssl("x509", "-in", pair.certificate, "-noout", "-enddate").partition("=")[2].strip()


class Mount:
    """A Secret as the kubelet mounts it: links into a folder that is reached by one link, which is swapped."""

    def __init__(self, folder: Path, pair: Files) -> None:
        self._folder = folder
        self._round = 0
        folder.mkdir()
        self.swap(pair)
        for name in ("tls.crt", "tls.key"):
            (folder / name).symlink_to(Path("..data") / name)
        self.files = Files(folder / "tls.crt", folder / "tls.key")

    def swap(self, pair: Files) -> None:
        """The Secret has changed. Both files change at one moment."""
        self._round += 1
        data = self._folder / f"..{self._round}"
        data.mkdir()
        shutil.copy(pair.certificate, data / "tls.crt")
        shutil.copy(pair.key, data / "tls.key")
        link = self._folder / "..data_tmp"
        link.symlink_to(data.name)
        link.replace(self._folder / "..data")


def _openssl(*words: str | Path) -> str:
    command: Sequence[str] = ("openssl", *map(str, words))
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
