"""Until when a certificate is valid, against what openssl says."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.errors import WireError
from hami_plugin.scheduler.extender.certificates import expiry, leaf
from tests.support.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize(("kind", "days"), [("ec", 1), ("rsa", 400), ("ec", 36_500), ("rsa", -1)])
def test_the_end_is_the_one_that_openssl_reads_in_this_century_and_the_next(
    authority: Authority, kind: str, days: int
) -> None:
    pair = authority.pair(f"{kind}{days}", kind=kind, days=days)

    wanted = authority.ends(pair)

    assert expiry(leaf(pair.certificate.read_text())) == wanted


def test_of_a_chain_the_first_counts(authority: Authority, tmp_path: Path) -> None:
    pair = authority.pair("short", days=1)
    chain = pair.certificate.read_text() + authority.certificate.read_text()

    assert leaf(chain) == leaf(pair.certificate.read_text())
    assert leaf("some words\n" + chain) == leaf(chain)


def test_a_file_without_a_certificate_is_said() -> None:
    with pytest.raises(WireError, match="no certificate in PEM"):
        leaf("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")


@given(st.binary(max_size=300))
def test_any_bytes_have_an_end_or_are_refused(der: bytes) -> None:
    with suppress(WireError):
        assert expiry(der).tzinfo is UTC


def test_a_certificate_that_is_cut_anywhere_is_refused(authority: Authority) -> None:
    der = leaf(authority.pair("cut").certificate.read_text())

    for size in range(len(der)):
        with pytest.raises(WireError):
            expiry(der[:size])
