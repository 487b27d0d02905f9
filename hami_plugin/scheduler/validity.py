"""Until when a certificate is valid, read out of the certificate itself."""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime

from hami_plugin.errors import WireError

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
