"""Compiles a small C library, once for each version of its sources, in place of a vendor's closed library."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_plugin.errors import HamiError

DEADLINE_S: Final = 60.0
_REMEDY = "install gcc, or use the Python simulation"


class BuildError(HamiError):
    """A simulated library could not be compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CSources:
    """The C files of ``folder``, compiled to the shared library ``library``."""

    library: str
    folder: Path

    @property
    def flags(self) -> tuple[str, ...]:
        return (
            *("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"),
            *("-Wall", "-Wextra", "-Werror", "-Wl,-z,defs", f"-Wl,-soname,{self.library}"),
        )

    def fingerprint(self) -> str:
        """The SHA-256 of everything that determines the result."""
        digest = hashlib.sha256(" ".join(self.flags).encode())
        for file in sorted(self.folder.glob("*.[ch]")):
            digest.update(file.name.encode())
            digest.update(file.read_bytes())
        return digest.hexdigest()


def build(source: CSources, target: Path) -> Path:
    """Put the library at ``target`` (or into the directory ``target``, by its standard name) and return its path.

    It is compiled once, into the user's cache. Several processes may build at once; the last one wins.
    """
    target = target / source.library if target.is_dir() else target
    place = Path(f"{source.library.partition('.')[0]}-{source.fingerprint()[:16]}") / source.library
    made = next((path for folder in _caches() if _trusted(folder) and (path := folder / place).is_file()), None)
    if made is None:
        made = _cache() / place
        _compile(source, made)
    _copy(made, target)
    return target


def compiler() -> list[str]:
    """The C compiler: $CC, or the first of cc and gcc. BuildError if there is none."""
    chosen = shlex.split(os.environ.get("CC", ""))
    if chosen:
        return chosen
    for name in ("cc", "gcc"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C compiler on PATH (tried $CC, cc, gcc)", hint=_REMEDY)


def _caches() -> tuple[Path, ...]:
    """Where the library may be: in the user's cache (an image may provide it), or in the temporary directory."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME') or '.'}/.cache")
    folders = (base / "hami-plugin", Path(tempfile.gettempdir()) / f"hami-plugin-{os.getuid()}")
    return tuple(folder for folder in folders if folder.is_absolute())


def _cache() -> Path:
    """The first writable one."""
    for folder in _caches():
        with suppress(OSError):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if _trusted(folder) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise BuildError(f"none of {', '.join(map(str, _caches()))} can be written to", hint="set XDG_CACHE_HOME")


def _trusted(folder: Path) -> bool:
    """Whether only root or this user could have written to the directory."""
    try:
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid in (0, os.getuid()) and not status.st_mode & 0o002


def _compile(source: CSources, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        command = [*compiler(), *source.flags, "-o", str(made), *map(str, sorted(source.folder.glob("*.c")))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)  # noqa: S603  # the user chose the compiler
        except OSError as error:
            raise BuildError(f"{command[0]} does not start: {error}", hint=_REMEDY) from error
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"no result in {DEADLINE_S:.0f} s: {shlex.join(command)}", hint=_REMEDY) from error
        if done.returncode:
            raise BuildError(
                f"{shlex.join(command)}\nends with {done.returncode}:\n{done.stderr.strip()}", hint=_REMEDY
            )
        made.replace(target)


def _copy(source: Path, target: Path) -> None:
    """A separate copy: the library keeps its state beside the file it was loaded from."""
    if target.is_file() and filecmp.cmp(source, target, shallow=False):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".library-")
    os.close(descriptor)
    part = Path(name)
    try:
        shutil.copyfile(source, part)
        part.chmod(0o755)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
