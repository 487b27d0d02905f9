"""What ``cnmon`` does with sMLU mode, as a program over the simulated machine's files. It is run, not imported.

``smlu/<card>/on`` is there in sMLU mode, as ``native/cndev.c`` reads it, and the note ``busy.<card>`` while a process
has the MLU open. ``leave.<card>`` lets the tool say that it has switched, and not do it.
"""

import sys
from pathlib import Path


def main(folder: str, arguments: list[str]) -> None:
    notes = Path(folder)
    match arguments:
        case ["set", "-c", card, "-smlu", ("on" | "off") as mode]:
            place = notes.parent.parent / "smlu" / card
            if not place.is_dir():
                sys.exit(f"Error: no card {card}")
            if (notes / f"busy.{card}").exists():
                sys.exit("Error: the device is busy")
            if mode == "off" and any((place / "instances").iterdir()):
                sys.exit("Error: there are sMLU instances")
            on = place / "on"
            if (notes / f"leave.{card}").exists():
                return
            if mode == "on":
                on.touch()
            else:
                on.unlink(missing_ok=True)
        case _:
            sys.exit(f"Error: invalid arguments: {' '.join(arguments)}")
