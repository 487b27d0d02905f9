"""The project's own image, as make image makes it."""

from pathlib import Path

from hami_plugin import __version__
from tools.debian.telling import Say
from tools.image import build, builder
from tools.image.build import Kind

NAME = f"hami-plugin:{__version__}"


def archive(say: Say) -> Path:
    """Return its OCI archive, made now if sources have changed. ``LackingError`` where that cannot be.

    Debian's buildah builds it, whatever is installed.
    """
    image = build.made(Kind(name=NAME), build.OUTPUT, build.cache(), say, tool=builder.DEBIANS)
    say(f"{NAME} {image.digest}")
    return image.archive
