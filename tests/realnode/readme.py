"""The three commands of the README's "On a cluster", and the five of the page about claims, as they stand there."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from tests.realnode.release import NAME, NAMESPACE

ROOT = Path(__file__).parents[2]
README = ("README.md", "## On a cluster")
CLAIMS = ("docs/dra.md", "## From an empty cluster")
"""A page, and the title above the commands."""
HELM_INSTALL = ["helm", "install", "--namespace", NAMESPACE, "--create-namespace", NAME, "./charts/hami-plugin"]
"""What ``Release.install`` does, but for values."""


def commands(node: str, page: tuple[str, str] = README) -> Sequence[Sequence[str]]:
    """Return each command's words, with the name of a ``node`` where the page says NODE."""
    file, title = page
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.search(rf"^{title}$.*?^```$(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert found, f"{file} has no commands under {title!r}"
    return [[node if word == "NODE" else word for word in shlex.split(line)] for line in found[1].strip().splitlines()]
