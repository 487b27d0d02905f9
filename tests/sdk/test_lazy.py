"""Functions that are imported when they are called."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hami_plugin.sdk.lazy import deferred


def test_nothing_is_imported_before_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_far.py").write_text("def add(a, *, b):\n    return a + b\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    add = deferred("acme_far.add")
    assert "acme_far" not in sys.modules

    assert add(1, b=2) == 3
