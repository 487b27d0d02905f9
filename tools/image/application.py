"""What lies in the image at ``HOME``: what requirements.lock pins, and the project, with all of it compiled."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools.debian.commands import LackingError, output
from tools.debian.keeping import once
from tools.debian.telling import Say
from tools.image.python import DEADLINE_S, VERSION, Python

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = ROOT / "requirements.lock"
HOME: Final = "opt/hami-plugin"
SITE: Final = f"{HOME}/lib/python{VERSION}/site-packages"
CACHE: Final = f"{HOME}/cache"
GENERATED: Final = ("kubernetes/client/api", "kubernetes/client/models")
"""The package reads credentials here; nothing loads the modules of these folders and of those under aio, 120 MB."""
SIMULATED: Final = ("dgx-h100", "ascend-910b3-8", "cambricon-mlu370x8-4-smlu")
"""Machines whose libraries are compiled now, so that a container without a compiler simulates them."""
COMMAND: Final = f"""\
#!/{HOME}/bin/python
import sys

from hami_plugin.cli import main

sys.exit(main())
"""


def requirements_in(folder: Path, base: Path, say: Say) -> Path:
    """Return a tree of what the lock pins, installed now if it is not there yet. ``LackingError`` where it cannot."""
    tree = folder / "root"

    def install() -> Mapping[str, object]:
        if tree.exists():
            shutil.rmtree(tree)
        python = Python(root=base)
        _pip(python, tree, "--require-hashes", "--requirement", str(LOCK))
        slim(tree / SITE)
        python.compile(tree, SITE)
        say(f"{LOCK.name} is installed")
        return {}

    made_by = (base.parent / "complete.json").read_text()  # another Python may need other wheels
    recipe = "\n".join((LOCK.read_text(), made_by, Path(__file__).read_text()))
    once(folder, recipe, install, wait_s=3 * DEADLINE_S)
    return tree


def slim(site: Path) -> None:
    """Remove the modules of the kubernetes package that reading credentials does not load; packages stay packages."""
    for folder in (site / part.replace("/client", side) for part in GENERATED for side in ("/client", "/aio/client")):
        for path in folder.iterdir():
            if path.name != "__init__.py":
                path.unlink()
        (folder / "__init__.py").write_text("")


def project(tree: Path, base: Path, requirements: Path, epoch: int) -> None:
    """Fill a new tree with the project: its modules, its command, and the compiled libraries of simulated machines."""
    python = Python(root=base)
    with TemporaryDirectory(prefix="wheel-") as folder:
        output(
            [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder],
            deadline_s=DEADLINE_S,
            cwd=ROOT,
            environment={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
            remedy="make setup",
        )
        _pip(python, tree, "--no-index", "--no-deps", "--find-links", folder, "hami-plugin")
    command = tree / HOME / "bin/hami-plugin"
    command.parent.mkdir(parents=True)
    command.write_text(COMMAND)
    command.chmod(0o755)
    python.compile(tree, SITE)
    (tree / CACHE).mkdir()
    modules = {"PYTHONPATH": f"{tree / SITE}:{requirements / SITE}", "XDG_CACHE_HOME": str(tree / CACHE)}
    for machine in SIMULATED:
        python.run("-m", "hami_plugin", "discover", "--simulate", machine, remedy="apt-get install gcc", **modules)


def environment(tree: Path, interpreter: str) -> None:
    """Make ``HOME`` a virtual environment of an interpreter that is elsewhere in the image."""
    link = tree / HOME / "bin/python"
    link.parent.mkdir(parents=True)
    link.symlink_to(interpreter)
    settings = f"home = {Path(interpreter).parent}\ninclude-system-site-packages = false\n"
    (tree / HOME / "pyvenv.cfg").write_text(settings)


def _pip(python: Python, tree: Path, *what: str) -> None:
    """Have this environment's pip install wheels into a tree, for the image's Python and run by it."""
    found = importlib.util.find_spec("pip")
    if found is None or found.origin is None:
        raise LackingError(f"{sys.executable} has no pip (try: {sys.executable} -m ensurepip)")
    python.run(
        *(str(Path(found.origin).parent), "install", "--quiet", "--disable-pip-version-check", "--no-compile"),
        *("--only-binary", ":all:", "--target", str(tree / SITE), *what),
        remedy="set PIP_INDEX_URL to a Python package index that this machine reaches",
    )
    shutil.rmtree(tree / SITE / "bin", ignore_errors=True)  # commands of libraries, which name a Python of this machine
