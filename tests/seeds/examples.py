"""The documents that stand beside the tests of the seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent


def examples(name: str) -> list[dict[str, Any]]:
    """The documents of one of the files here, in their order."""
    return [one for one in yaml.safe_load_all((HERE / name).read_text(encoding="utf-8")) if one]
