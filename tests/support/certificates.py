"""Certificates for tests: an authority, and pairs that it signs for 127.0.0.1 and localhost."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as pem

KINDS = {"ec": trustme.KeyType.ECDSA, "rsa": trustme.KeyType.RSA}


@dataclass(frozen=True)
class Files:
    certificate: Path
    key: Path


class Authority:
    """Signs pairs. ``certificate`` is what clients trust."""

    def __init__(self, folder: Path, *, unit: str | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA(organization_name="test authority", organization_unit_name=unit)
        self.certificate = folder / "ca.crt"
        self._authority.cert_pem.write_to_path(self.certificate)

    def pair(self, name: str, *, kind: str = "ec", days: int = 2, password: str = "") -> Files:
        """A pair that is valid for so many days from now. Less than 0: one that has expired."""
        end = datetime.now(UTC) + timedelta(days=days)
        issued = self._authority.issue_cert(
            "127.0.0.1", "localhost", common_name=name, key_type=KINDS[kind],
            not_before=min(end, datetime.now(UTC)) - timedelta(days=1), not_after=end,
        )  # fmt: skip
        made = Files(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(made.certificate)
        key = issued.private_key_pem.bytes()
        if password:
            hidden = pem.BestAvailableEncryption(password.encode())
            loaded = pem.load_pem_private_key(key, password=None)
            key = loaded.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, hidden)
        made.key.write_bytes(key)
        return made

    def fingerprint(self, pair: Files) -> str:
        """The certificate's SHA-256 in small letters."""
        return _read(pair).fingerprint(hashes.SHA256()).hex()

    def ends(self, pair: Files) -> datetime:
        """The end of its validity."""
        return _read(pair).not_valid_after_utc


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


def _read(pair: Files) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate.read_bytes())
