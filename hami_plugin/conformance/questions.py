"""Files of recorded questions and answers: ``.jsonl``, or compressed as ``.jsonl.xz``."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hami_plugin.errors import HamiError
from hami_plugin.parity import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question, and HAMi's answers: the one that was recorded, then others that it gave to the same question."""

    id: str
    question: Json
    answers: tuple[Json, ...]


def read(path: Path) -> Iterator[Case]:
    """The cases of a file, in order. HamiError names the line that is no question."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield _case(line, f"{path}:{number}")
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise HamiError(f"{path}: cannot be read: {error}", hint="give a .jsonl or a .jsonl.xz file") from error


def _case(line: str, where: str) -> Case:
    try:
        row = json.loads(line)
        answer = {key: value for key, value in row["out"].items() if key != "variants"}
        variants = tuple(row["out"].get("variants") or ())
        return Case(id=str(row["id"]), question=row["in"], answers=(answer, *variants))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HamiError(f"{where}: is no question", hint='each line is {"id", "in", "out"}') from error
