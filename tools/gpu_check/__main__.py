"""``python -m tools.gpu_check``: compare this machine's GPUs with what the simulation claims.

It only reads, unless it is told to ``--mutate``.

Status 0: nothing differs. 1: something does. 2: wrong arguments. 3: there is no driver, or no card.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from hami_plugin.telemetry.logs import configure
from tools.gpu_check.findings import Trees
from tools.gpu_check.report import document, lines
from tools.gpu_check.run import run
from vendors.nvidia.settings import NvidiaSettings

SAME, DIFFERS, NO_DRIVER = 0, 1, 3


def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    # A wedged card blocks in the driver, where no exception reaches: show where, and end.
    faulthandler.dump_traceback_later(chosen.deadline, exit=True)
    with ExitStack() as stack:
        stack.callback(configure(level="warning", format="auto", stream=sys.stderr).close)
        return _run(chosen)


def _run(chosen: argparse.Namespace) -> int:
    trees = Trees(sysfs=chosen.sysfs_root, proc=chosen.proc_root, dev=chosen.dev_root)
    places = {"nvmlLibrary": chosen.nvml_library, "sysfsRoot": trees.sysfs, "procRoot": trees.proc}
    outcome = run(NvidiaSettings.model_validate(places), trees, mutate=chosen.mutate)
    sys.stdout.writelines(f"{line}\n" for line in lines(outcome))
    chosen.report.parent.mkdir(parents=True, exist_ok=True)
    chosen.report.write_text(json.dumps(document(outcome), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(f"Result: {outcome.result}. Report: {chosen.report}\n")
    return {"same": SAME, "differs": DIFFERS, "no driver": NO_DRIVER}[outcome.result]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check", description=(__doc__ or "").strip())
    report = Path(os.environ.get("OUT") or ".") / "gpu-check.json"
    parser.add_argument("--report", type=Path, default=report, help="file for the JSON report (default: %(default)s)")
    parser.add_argument("--nvml-library", type=Path, help="library to load instead of the system's libnvidia-ml.so.1")
    for name in ("sysfs", "proc", "dev"):
        root = Path("/sys" if name == "sysfs" else f"/{name}")
        parser.add_argument(f"--{name}-root", type=Path, default=root, help="another place than %(default)s")
    parser.add_argument(
        "--mutate",
        action="store_true",
        help="on the first card that nobody uses, switch MIG on, make every instance once, and leave it as it was",
    )
    parser.add_argument(
        "--deadline", type=float, default=300.0, help="seconds until it gives up (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
