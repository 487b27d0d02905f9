"""Laid beside the daemon's own code by PYTHONPATH: it stands still at one moment of a claim's life, to be killed there,
or until the test lets it go on. Nothing else of it is changed.
"""

import time
from pathlib import Path
from typing import Any

from hami_plugin.dra.prepared import ClaimFiles, PreparedClaims

WANTED, REACHED = (Path(__file__).with_name(name) for name in ("wanted", "reached"))
LOOK_S = 0.02


def stop(moment: str) -> None:
    try:
        wanted = WANTED.read_text()
    except OSError:
        return
    if moment == wanted:
        WANTED.unlink()
        REACHED.write_text(moment)
        while REACHED.exists():
            time.sleep(LOOK_S)


def trapped(cls: Any, name: str, told: Any) -> None:
    real = getattr(cls, name)

    def done(self: Any, *arguments: Any) -> Any:
        what = told(*arguments)
        stop(f"before {what}")
        answer = real(self, *arguments)
        stop(f"after {what}")
        return answer

    setattr(cls, name, done)


trapped(PreparedClaims, "note", lambda one: "note done" if one.done else "note begun")
trapped(PreparedClaims, "drop", lambda _key: "drop")
trapped(ClaimFiles, "lay_out", lambda _one: "spec")
trapped(ClaimFiles, "remove", lambda _left: "remove")
