"""The base: a root file system with Debian's Python, and without a shell, a package manager, or a compiler."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.debian.apt import Packages
from tools.debian.telling import Say
from tools.debian.tree import Tree
from tools.image.python import VERSION, Python

PACKAGES: Final = Packages(
    alone=(
        *("base-files", "ca-certificates", "netbase", "libc6"),
        *(f"python{VERSION}-minimal", f"libpython{VERSION}-minimal", f"libpython{VERSION}-stdlib"),
        *("libbz2-1.0", "libexpat1", "libffi8", "liblzma5", "libssl3", "libuuid1", "zlib1g"),
        *("libstdc++6", "libgcc-s1", "gcc-12-base"),  # wheels, and vendors' libraries and tools
    )
)
"""Named one by one: their dependencies would bring a shell, perl, dpkg, Kerberos and databases."""

EXTENSIONS: Final = ("_bsddb", "_crypt", "_curses", "_curses_panel", "_dbm", "_gdbm", "_sqlite3", "nis", "readline")
"""Modules of Python whose libraries are not in the base; nothing here imports them."""
MODULES: Final = (
    *("crypt.py", "curses", "dbm", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "sqlite3"),
    *("test", "tkinter", "turtledemo", "venv"),
)
UNUSED: Final = (
    *("etc/ca-certificates", "etc/dpkg", "etc/profile.d", "etc/update-motd.d", "usr/sbin/update-ca-certificates"),
    *("usr/lib/*/gconv", "usr/share/apport", "usr/share/base-files", "usr/share/binfmts", "usr/share/bug"),
    *("usr/share/ca-certificates", "usr/share/dict", "usr/share/gcc", "usr/share/gdb", "usr/share/info"),
    *("usr/share/lintian", "usr/share/man", "usr/share/misc", "usr/share/perl5", "usr/share/python3"),
    *(f"usr/lib/python{VERSION}/{name}" for name in MODULES),
    *(f"usr/lib/python{VERSION}/lib-dynload/{name}.*" for name in EXTENSIONS),
)
BUNDLE: Final = "etc/ssl/certs/ca-certificates.crt"
FILES: Final[Mapping[str, str]] = {
    "etc/passwd": "root:x:0:0:root:/:/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",  # a runtime that adds a driver's libraries reads it
}
"""What scripts of packages make on a Debian system."""


def kept_in(folder: Path, say: Say, *, anew: bool = False) -> Path:
    """Return the base's root file system, made now if it is not there yet. ``LackingError`` where that cannot be."""
    tree = Tree(packages=PACKAGES, finish=_finish, decided_by=[path.read_text() for path in _modules()])
    return tree.kept_in(folder, say, anew=anew)


def _modules() -> tuple[Path, ...]:
    return Path(__file__), Path(__file__).with_name("python.py")


def _finish(root: Path) -> Mapping[str, object]:
    bundle = "".join(path.read_text() for path in sorted(root.glob("usr/share/ca-certificates/mozilla/*.crt")))
    for unused in [path for pattern in UNUSED for path in root.glob(pattern)]:
        if unused.is_dir() and not unused.is_symlink():
            shutil.rmtree(unused)
        else:
            unused.unlink()
    for path in sorted(root.glob("usr/share/doc/*/*")):
        if path.name != "copyright" and path.is_file():  # not that of another package, by a link, a second time
            path.unlink()
    for place, text in {**FILES, BUNDLE: bundle}.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
    (root / "usr/lib/ssl").mkdir(exist_ok=True)
    (root / "usr/lib/ssl/cert.pem").symlink_to(f"/{BUNDLE}")
    python = Python(root=root)
    python.compile(root, f"usr/lib/python{VERSION}")
    return {"python": python.run("--version").strip()}
