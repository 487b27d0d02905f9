"""Check the subjects of commits: an imperative of at most 72 characters, without a full stop.

    .venv/bin/python tools/commits.py BASE           the commits since BASE
    .venv/bin/python tools/commits.py --message FILE     the message in a file, as in git's hook

A scope may precede it: ``scheduler: return 400 for malformed pods``. The verb's ending tells whether it is an
imperative.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MAX_LENGTH = 72
MADE_BY_GIT = re.compile(r"(Merge|Revert|fixup!|squash!|amend!) ")
SCOPE = re.compile(r"^[a-z][\w./,-]*: ")
OTHER_ENDING = re.compile(r"\w{3,}(ed|ing)|\w{2,}[^s]s", re.IGNORECASE)
IMPERATIVE = frozenset(
    {"embed", "exceed", "feed", "focus", "need", "proceed", "process", "seed", "speed", "bring", "string"}
)
"""Imperatives that end like another form."""


def problems(subject: str) -> list[str]:
    """The problems of a subject; git's own subjects have none."""
    if MADE_BY_GIT.match(subject):
        return []
    first = SCOPE.sub("", subject).partition(" ")[0]
    found = []
    if len(subject) > MAX_LENGTH:
        found.append(f"has {len(subject)} characters, {MAX_LENGTH} are allowed")
    if subject.endswith("."):
        found.append("ends with a full stop")
    if not first:
        found.append("is empty")
    elif first.lower() not in IMPERATIVE and OTHER_ENDING.fullmatch(first):
        found.append(f"begins with {first!r}, which is not an imperative")
    return found


def subjects(base: str) -> list[str] | None:
    """The subjects since ``base``, oldest first; None if the history does not tell."""
    merge_base = _git("merge-base", base, "HEAD")
    if merge_base is None:
        return None
    return (_git("log", "--reverse", "--format=%s", f"{merge_base}..HEAD") or "").splitlines()


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["--message", file]:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
            looked_at: list[str] | None = [next((line for line in lines if line and not line.startswith("#")), "")]
        case [base]:
            looked_at = subjects(base)
        case _:
            print(__doc__)
            return 2
    if looked_at is None:
        print(f"Nothing is checked: {arguments[0]} and HEAD have no common history here")
        return 0
    wrong = [f"{subject!r} {problem}" for subject in looked_at for problem in problems(subject)]
    print("\n".join(wrong) or f"{len(looked_at)} subjects hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
