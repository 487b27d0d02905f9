"""Fuzzes every target for a while and prints a table: ``python -m tests.fuzz.run [TARGET...]``.

``FUZZ_SECONDS`` is how long each target has. Inputs that lead to new places stay in ``build/fuzz`` for the next run;
with ``FUZZ_KEEP=1`` those that lead to new lines go to ``tests/fuzz/corpus`` as well, which ``make test`` replays. An
input that a parser does not survive is made as small as it can be and kept there in any case.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
WORK = ROOT / "build" / "fuzz"
MAX_BYTES = 8192
HANG_S = 10
"""How long one input may take. Under coverage everything is some ten times slower."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of one target. ``more`` is new coverage; ``crashes`` are files in the corpus; ``words`` what broke."""

    target: str
    executions: int
    more: int
    kept: int
    crashes: tuple[str, ...]
    words: str


def fuzzed(target: str, seconds: int, *, keep: bool) -> Run:
    new, found = WORK / target / "new", WORK / target / "found"
    for folder in (new, found, CORPUS / target):
        folder.mkdir(parents=True, exist_ok=True)
    for old in found.iterdir():
        old.unlink()
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={HANG_S}",
        f"-max_len={MAX_BYTES}",
        f"-artifact_prefix={found}/",
        f"-dict={_dictionary(target)}",
        "-rss_limit_mb=1536",
        "-print_final_stats=1",
    ]
    command = [sys.executable, "-m", "tests.fuzz.one", target, *options, str(new), str(CORPUS / target)]
    # What a target prints is of no interest; libFuzzer speaks on standard error.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    said = done.stderr
    (WORK / target / "log").write_text(done.stdout + said, encoding="utf-8", errors="replace")
    coverage = [int(number) for number in re.findall(r"cov: (\d+)", said)]
    executions = re.findall(r"number_of_executed_units: (\d+)", said) or re.findall(r"^#(\d+)\s", said, re.MULTILINE)
    crashes = tuple(_regression(target, file) for file in sorted(found.iterdir()))
    words = _last_words(done.stdout + said) if done.returncode else ""
    kept = _less(target, "keep", new) if keep and not done.returncode else "0"
    return Run(
        target=target,
        executions=int(executions[-1]) if executions else 0,
        more=coverage[-1] - coverage[0] if coverage else 0,
        kept=int(kept),
        crashes=crashes,
        words=words or ("" if not done.returncode else f"ended with status {done.returncode}"),
    )


def _dictionary(target: str) -> Path:
    """Words of the seeds, and the signs of JSON: a mutator that knows no grammar gets far with them."""
    words = set(re.findall(rb"[A-Za-z0-9_./-]{2,40}", b"\n".join(f.read_bytes() for f in (CORPUS / target).iterdir())))
    signs = [b"{", b"}", b"[", b"]", b'":', b",", b"null", b"true", b"1e999", b"-1", b"9" * 40, b"\\ud800", b"\\u0000"]
    lines = ['"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in (*signs, *sorted(words)[:400])]
    path = WORK / target / "dictionary"
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    return path


def _regression(target: str, file: Path) -> str:
    """The input, made smaller, as a file of the corpus."""
    _less(target, "smaller", file)
    content = file.read_bytes()
    name = f"{file.name.partition('-')[0]}-{hashlib.sha256(content).hexdigest()[:12]}"
    (CORPUS / target / name).write_bytes(content)
    return name


def _less(target: str, *arguments: object) -> str:
    command = [sys.executable, "-m", "tests.fuzz.less", target, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() and not done.returncode else "0"


def _last_words(said: str) -> str:
    """The error's line of the traceback that atheris prints."""
    found = re.search(r"Uncaught Python exception: ===\n(.*)", said) or re.search(r"ERROR: (libFuzzer: .*)", said)
    return found[1][:160] if found else ""


def main(wanted: Sequence[str]) -> int:
    # A process of its own knows the targets: this one needs no atheris, and nothing of what they import.
    listed = subprocess.run(
        [sys.executable, "-c", "from tests.fuzz.targets import TARGETS; print(*TARGETS)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    unknown = [name for name in wanted if name not in listed]
    if unknown:
        print(f"no target is named {', '.join(unknown)}; choose from: {', '.join(listed)}")
        return 2
    seconds, keep = int(os.environ.get("FUZZ_SECONDS", "20")), bool(os.environ.get("FUZZ_KEEP"))
    row = "{:24} {:>10} {:>12} {:>5} {:>7}  {}"
    print(row.format("target", "executions", "new coverage", "kept", "crashes", ""), flush=True)
    failed = 0
    for target in wanted or listed:
        run = fuzzed(target, seconds, keep=keep)
        failed += bool(run.words or run.crashes)
        told = "; ".join(filter(None, (run.words, ", ".join(run.crashes))))
        print(row.format(target, run.executions, run.more, run.kept, len(run.crashes), told), flush=True)
    print(f"{len(wanted or listed) - failed} of {len(wanted or listed)} targets held; logs are in {WORK}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
