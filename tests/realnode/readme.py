"""The three commands of the README's "On a cluster", as they stand there."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from tests.realnode.release import NAME, NAMESPACE

ROOT = Path(__file__).parents[2]
TITLE = "## On a cluster"
HELM_INSTALL = ["helm", "install", "--namespace", NAMESPACE, "--create-namespace", NAME, "./charts/hami-plugin"]
"""What ``Release.install`` does, but for values."""


def commands(node: str) -> Sequence[Sequence[str]]:
    """Return each command's words, with the name of a ``node`` where the README says NODE."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^{TITLE}$.*?^```$(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert found, f"README.md has no commands under {TITLE!r}"
    return [[node if word == "NODE" else word for word in shlex.split(line)] for line in found[1].strip().splitlines()]
