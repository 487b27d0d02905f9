"""The certificate of the server's port: read, checked, and reloaded when its files are replaced."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from hami_plugin.errors import HamiError, WireError
from hami_plugin.process.concurrency import StuckError, WorkThread
from hami_plugin.process.log import logger
from hami_plugin.scheduler.extender.metrics import SchedulerMetrics

_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_CONTEXT_0, _UTC_TIME, _GENERAL_TIME = 0xA0, 0x17, 0x18


def leaf(pem: str) -> bytes:
    """The first certificate of a PEM file, which is the server's own, as DER. ``WireError`` when there is none."""
    block = _BLOCK.search(pem)
    if block is None:
        raise WireError("no certificate in PEM", hint="the file begins with -----BEGIN CERTIFICATE-----")
    try:
        return ssl.PEM_cert_to_DER_cert(block.group())
    except ValueError as error:
        raise WireError(f"a certificate whose PEM is broken: {error}") from error


def expiry(der: bytes) -> datetime:
    """The end of a certificate's validity (X.509's ``notAfter``). ``WireError`` when there is no such thing.

    A certificate is a sequence whose first part is a sequence of: version (may be left out), serial number, algorithm,
    issuer, validity; and a validity is two times.
    """
    _, certificate, _ = _element(der, 0)
    _, at, _ = _element(der, certificate)
    if _element(der, at)[0] == _CONTEXT_0:
        at = _element(der, at)[2]
    for _ in ("serial number", "algorithm", "issuer"):
        at = _element(der, at)[2]
    _, validity, _ = _element(der, at)
    tag, start, end = _element(der, _element(der, validity)[2])
    return _time(tag, der[start:end])


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """The element at an offset: its tag, where its content begins, and where it ends."""
    if at + 2 > len(der):
        raise WireError("a certificate that ends too early")
    tag, size, start = der[at], der[at + 1], at + 2
    if size & 0x80:
        octets = size & 0x7F
        size, start = int.from_bytes(der[start : start + octets], "big"), start + octets
    if start + size > len(der):
        raise WireError("a certificate that ends too early")
    return tag, start, start + size


def _time(tag: int, content: bytes) -> datetime:
    """X.509 has two forms: years of two digits from 1950 to 2049, and years of four."""
    text = content.decode("ascii", errors="replace")
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERAL_TIME:
        raise WireError("a certificate without an end of its validity")
    try:
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise WireError(f"a certificate with an unreadable end of its validity: {text!a}") from error


log = logger(__name__)

_TRIES = 5
_TIMEOUT_S = 10.0
_HINT = "give a certificate and its own key, both in PEM, the key without a password"
_OTHER_KEY = "the key is another certificate's"
_EXPLANATIONS = {
    "KEY_VALUES_MISMATCH": _OTHER_KEY,
    "KEY_TYPE_MISMATCH": _OTHER_KEY,
    "NO_CERTIFICATE_ASSIGNED": _OTHER_KEY,
    "": "one of them is not as TLS needs it",
}
"""The library's reasons, for people."""

Stamp = tuple[tuple[int, int, int, int], ...]
Present = Callable[[ssl.SSLContext], Awaitable[None]]


Names = frozenset[tuple[tuple[tuple[str, str], ...], ...]]
"""Authorities by the names that certificates of theirs have as their issuer's."""


class PortContext(ssl.SSLContext):
    """A context of the port that knows whose client certificates are good for what."""

    extender: Names
    webhook: Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate with its key, ready to be presented. Each pair has a context of its own, since one context that
    takes a second pair goes on presenting the first where their kinds of key differ. ``fingerprint`` is the
    certificate's SHA-256, as ``openssl x509 -fingerprint`` prints it.
    """

    context: ssl.SSLContext
    expires: datetime
    fingerprint: str


class Certificates:
    """The pair in two files, and authorities of clients in two others: of kube-schedulers elsewhere, and of the API
    server. ``now`` is the wall clock, in UTC.

    ``timeout`` is how many seconds a check may take: the files may be on a disk that does not answer.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        client_ca: Path | None = None,
        webhook_ca: Path | None = None,
        metrics: SchedulerMetrics,
        now: Callable[[], datetime] = lambda: datetime.now(tz=UTC),
        timeout: float = _TIMEOUT_S,
    ) -> None:
        self._files = (certificate, key)
        self._timeout = timeout
        self._client_ca = client_ca
        self._webhook_ca = webhook_ca
        self._metrics = metrics
        self._now = now
        self._seen: Stamp | None = None
        self._presented = ""
        self._bad = self._slow = ""
        self._thread = WorkThread("certificates")

    @property
    def problem(self) -> str:
        """Why what is in the files now is not presented; empty when it is."""
        return self._slow or self._bad

    def load(self) -> Pair:
        """The pair to start with. ``HamiError`` when there is none that can be used."""
        pair = self._settled()
        self._taken(pair)
        if pair.expires <= self._now():
            log.warning("certificate has expired", expired=_day(pair), what="the API server will not call the webhook")
        return pair

    async def follow(self, present: Present, *, every: float) -> NoReturn:
        """Check the files every so many seconds, and present what is new and good. A bad pair leaves the old one."""
        while True:
            await asyncio.sleep(every)
            await self.check(present)

    async def check(self, present: Present) -> None:
        """Check once. Files that change while they are read are left for the next check."""
        try:
            found = await self._thread.call(self._found, self._timeout)
        except StuckError as error:
            self._slow = f"{self._files[0]} cannot be read: {error}"
            log.warning("certificate not read", why=self._slow)
            return
        self._slow = ""
        if found is None:
            return
        self._seen, pair = found
        if isinstance(pair, HamiError):
            self._refused(pair)
            return
        self._bad = ""
        await present(pair.context)
        self._metrics.reloaded("ok")
        self._taken(pair)

    def _found(self) -> tuple[Stamp, Pair | HamiError] | None:
        """What is new in the files, or what is wrong with it. None: nothing, or they changed while they were read."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        pair: Pair | HamiError
        try:
            pair = self._fresh()
        except HamiError as error:
            pair = error
        return (stamp, pair) if self._stamp() == stamp else None

    def _settled(self) -> Pair:
        """What is in the files once they do not change while they are read."""
        for _ in range(_TRIES):
            self._seen = self._stamp()
            try:
                pair = self._read()
            except HamiError:
                if self._stamp() == self._seen:
                    raise
                continue
            if self._stamp() == self._seen:
                return pair
        raise HamiError(f"{self._files[0]} and {self._files[1]} change all the time", hint="see who writes them")

    def _taken(self, pair: Pair) -> None:
        log.info("certificate presented", sha256=pair.fingerprint, expires=_day(pair))
        self._presented = pair.fingerprint
        self._metrics.certificate(pair.expires.timestamp())

    def _refused(self, error: HamiError) -> None:
        self._bad = str(error)
        self._metrics.reloaded("failed")
        log.warning("new certificate refused", why=str(error), presented=self._presented)

    def _fresh(self) -> Pair:
        pair = self._read()
        if pair.expires <= self._now():
            raise HamiError(f"{self._files[0]} holds a certificate that has expired ({_day(pair)})")
        return pair

    def _read(self) -> Pair:
        certificate, key = self._files
        try:
            pem = certificate.read_text(encoding="ascii", errors="replace")
            key.read_bytes()  # whose error names the file; the library's does not
        except OSError as error:
            raise HamiError(
                f"{error.filename}: {error.strerror}",
                hint="check --tls-cert and --tls-key, and that the Secret is mounted",
            ) from error
        try:
            der = leaf(pem)
            return Pair(context=self._context(), expires=expiry(der), fingerprint=sha256(der).hexdigest())
        except (OSError, WireError) as error:  # ssl.SSLError is an OSError
            why = (
                _EXPLANATIONS.get(error.reason or "", _EXPLANATIONS[""])
                if isinstance(error, ssl.SSLError)
                else str(error)
            )
            raise HamiError(f"{certificate} and {key} are no pair for TLS: {why}", hint=_HINT) from error

    def _context(self) -> ssl.SSLContext:
        """Clients may show a certificate; one that is of no authority ends the handshake."""
        certificate, key = self._files
        context = PortContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key, password=lambda: "")  # never ask at a terminal
        extender, webhook = _trusted(context, self._client_ca), _trusted(context, self._webhook_ca)
        if both := extender.keys() & webhook.keys():
            for name in both:
                if extender[name] != webhook[name]:
                    raise HamiError(
                        f"{self._client_ca} and {self._webhook_ca} hold two authorities of one name, {_joined(name)}, "
                        "so what a certificate is good for cannot be told",
                        hint="give them names of their own, or use one authority for both",
                    )
        context.extender, context.webhook = frozenset(extender), frozenset(webhook)
        return context

    def _stamp(self) -> Stamp:
        """What changes when a file is replaced, also by a link that is swapped. Zeros for a file that is not there."""
        return tuple(_stamp(file) for file in (*self._files, self._client_ca, self._webhook_ca) if file)


def _stamp(file: Path) -> tuple[int, int, int, int]:
    try:
        found = file.stat()
    except OSError:
        return (0, 0, 0, 0)
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)


def _day(pair: Pair) -> str:
    return pair.expires.isoformat()


def issued(context: object, certificate: Mapping[str, Any] | None, *, webhook: bool) -> bool:
    """Whether a client's certificate, which TLS has found good, is of the authority for the webhook, or of that for
    the extender. An authority between must be in the file too.
    """
    if not isinstance(context, PortContext) or not certificate:
        return False
    return certificate.get("issuer") in (context.webhook if webhook else context.extender)


def common_name(certificate: Mapping[str, Any]) -> str:
    """The last common name of whom a certificate is for; empty where it has none."""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return names[-1] if names else ""


def _trusted(context: ssl.SSLContext, file: Path | None) -> dict[Any, str]:
    """Trust the authorities in a file. By their names, what distinguishes them from others of the same name."""
    if file is None:
        return {}
    alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        for each in (alone, context):
            each.load_verify_locations(file)
    except OSError as error:  # ssl.SSLError is one
        raise HamiError(f"{file} is no authority for clients: {error.strerror or error}") from error
    context.verify_mode = ssl.CERT_OPTIONAL
    return {one["subject"]: f"{one['serialNumber']} {one['notBefore']}" for one in alone.get_ca_certs()}


def _joined(name: Sequence[Sequence[tuple[str, str]]]) -> str:
    return ", ".join(f"{key}={value}" for part in name for key, value in part)
