"""``python -m vendors.nvidia.gpu_check``: compare this machine's GPUs with what the simulation claims. It only reads.

Status 0: nothing differs. 1: something does. 2: it cannot run here. 3: there is no driver, or no card.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

SAME, DIFFERS, CANNOT_RUN, NO_DRIVER = 0, 1, 2, 3
OLDEST_PYTHON = (3, 11)


def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    problem = _problem()
    if problem:
        sys.stderr.write(f"{problem}\n")
        return CANNOT_RUN
    # A wedged card blocks in the driver, where no exception reaches: show where, and end.
    faulthandler.dump_traceback_later(chosen.deadline, exit=True)
    with ExitStack() as stack:
        _quiet(stack)
        return _run(chosen)


def _run(chosen: argparse.Namespace) -> int:
    from vendors.nvidia.gpu_check.bench import Trees  # noqa: PLC0415  # needs what _problem looks for
    from vendors.nvidia.gpu_check.options import Options  # noqa: PLC0415
    from vendors.nvidia.gpu_check.report import document, lines  # noqa: PLC0415
    from vendors.nvidia.gpu_check.run import run  # noqa: PLC0415

    trees = Trees(sysfs=chosen.sysfs_root, proc=chosen.proc_root, dev=chosen.dev_root)
    options = Options(nvml_library=chosen.nvml_library, sysfs_root=trees.sysfs, proc_root=trees.proc)
    outcome = run(options, trees)
    sys.stdout.writelines(f"{line}\n" for line in lines(outcome))
    chosen.report.parent.mkdir(parents=True, exist_ok=True)
    chosen.report.write_text(json.dumps(document(outcome), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(f"Result: {outcome.result}. Report: {chosen.report}\n")
    return {"same": SAME, "differs": DIFFERS, "no driver": NO_DRIVER}[outcome.result]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m vendors.nvidia.gpu_check", description=(__doc__ or "").strip())
    report = Path(os.environ.get("OUT") or ".") / "gpu-check.json"
    parser.add_argument("--report", type=Path, default=report, help="file for the JSON report (default: %(default)s)")
    parser.add_argument("--nvml-library", type=Path, help="library to load instead of the system's libnvidia-ml.so.1")
    for name in ("sysfs", "proc", "dev"):
        root = Path("/sys" if name == "sysfs" else f"/{name}")
        parser.add_argument(f"--{name}-root", type=Path, default=root, help="another place than %(default)s")
    parser.add_argument(
        "--deadline", type=float, default=300.0, help="seconds until it gives up (default: %(default)s)"
    )
    return parser


def _problem() -> str:
    """Why it cannot run here, with the remedy."""
    if sys.version_info < OLDEST_PYTHON:
        return f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}"
    try:
        import pynvml  # noqa: F401, PLC0415  # whether it is there
    except ImportError:
        return "the binding to the driver library is missing; pip install nvidia-ml-py"
    return ""


def _quiet(stack: ExitStack) -> None:
    """Warnings only, beside the report. Without structlog the standard library does so by itself."""
    try:
        from hami_plugin.telemetry.logs import configure  # noqa: PLC0415  # needs structlog
    except ImportError:
        return
    stack.callback(configure(level="warning", format="auto", stream=sys.stderr).close)


if __name__ == "__main__":
    sys.exit(main())
