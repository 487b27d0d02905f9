"""Make the container image: python -m tools.image, which is what make image runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hami_plugin import __version__
from tools.debian import telling
from tools.debian.telling import Say
from tools.image.build import OUTPUT, Image, Kind, cache, made


def main() -> int:
    parser = argparse.ArgumentParser(prog="make image", description="Make the container image.")
    parser.add_argument("--name", default=f"hami-plugin:{__version__}", help="the image's name and tag")
    parser.add_argument("--base", help="another base, with Python 3.11 in it (default: made of Debian's packages)")
    parser.add_argument("--python", default="/usr/local/bin/python3.11", help="where Python is in that base")
    parser.add_argument("--builder", default="", help="buildah, podman or docker (default: whichever is installed)")
    parser.add_argument("--anew", action="store_true", help="ask Debian's mirror for today's packages")
    chosen = parser.parse_args()
    kind = Kind(name=chosen.name, base=chosen.base, python=chosen.python) if chosen.base else Kind(name=chosen.name)

    def install(say: Say) -> str:
        return _told(made(kind, OUTPUT, cache(), telling.timed(say), tool=chosen.builder, anew=chosen.anew))

    return telling.main(install, absent="No image")


def _told(image: Image) -> str:
    layers = "".join(f"\n  layer {number}: {size / 1e6:5.1f} MB" for number, size in enumerate(image.layers, 1))
    return f"{image.name} {image.digest}{layers}\n  {_here(image.archive)}\n  {_here(image.bill)}"


def _here(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
