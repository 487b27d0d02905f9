"""``hami-plugin new-vendor``: generate a vendor that runs and passes its test, as a starting point."""

from __future__ import annotations

import importlib
import json
import keyword
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from string import Template

import click

from hami_plugin.errors import HamiError

TRIAL_S = 120.0
"""Timeout of the new vendor's first discovery."""
MAX_NAME = 30
_NAME = re.compile(r"[a-z][a-z0-9]*")


@click.command("new-vendor", epilog="Example: hami-plugin new-vendor acme --tool")
@click.argument("name")
@click.option("--tool", "kind", flag_value="tool", help="The vendor's command-line tool lists the cards.")
@click.option("--sysfs", "kind", flag_value="sysfs", help="The cards are found in sysfs, without a tool.")
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory to write into. Default: the checkout that this command runs from.",
)
def new_vendor(name: str, kind: str | None, to: Path | None) -> None:
    """Generate a new vendor: driver, simulated machine, test and golden file.

    It runs as it is. Nothing is written if a file already exists, or if the new vendor does not run.
    """
    if kind is None:
        raise click.UsageError("choose how the cards are listed: --tool or --sysfs")
    _check(name)
    root = to or _checkout()
    with tempfile.TemporaryDirectory(prefix="hami-plugin-new-vendor-") as folder:
        files = _rendered(name, kind)
        _write(Path(folder), files)
        files[f"tests/vendors/{name}/golden/discovered.json"] = _discover(Path(folder), name)
    _write(root, files)
    for path in files:
        click.echo(f"wrote {root / path}")
    click.echo(f"\nTry it:  {_python_path(root)}hami-plugin discover --simulate {name}-4")
    click.echo(f"Test it: {_python_path(root)}python -m pytest {root}/tests/vendors/{name}/test_driver.py")
    click.echo("Then continue with docs/adding-a-vendor.md, 'What to change'.")


def _check(name: str) -> None:
    """``HamiError`` if a vendor cannot have this name."""
    from hami_plugin.sdk import vendor_names  # noqa: PLC0415

    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > MAX_NAME:
        raise HamiError(
            f"{name!r} cannot be the name of a vendor",
            hint=f"use up to {MAX_NAME} lower-case letters and digits, starting with a letter, and no Python keyword",
        )
    if name in vendor_names():
        raise HamiError(f"a vendor named {name!r} already exists", hint="choose another name")


def _checkout() -> Path:
    for folder in importlib.import_module("vendors").__path__:
        root = Path(folder).parent
        if (root / "tests/vendors").is_dir() and (root / "pyproject.toml").is_file():
            return root
    raise HamiError("this hami-plugin does not run from a checkout", hint="name the directory to write into with --to")


def _rendered(name: str, kind: str) -> dict[str, str]:
    """The text of each file by its path below the folder that holds ``vendors``."""
    templates = resources.files("hami_plugin.cli") / "templates"
    values = {"name": name, "Title": name.capitalize(), "Class": name.capitalize(), "NAME": name.upper()}
    sources = {
        f"vendors/{name}/__init__.py": templates / kind / "__init__.py.tmpl",
        f"vendors/{name}/simulation.py": templates / kind / "simulation.py.tmpl",
        f"vendors/{name}/profiles/{name}-4.yaml": templates / "profile.yaml.tmpl",
        f"tests/vendors/{name}/test_driver.py": templates / "test.py.tmpl",
    }
    return {path: Template(source.read_text(encoding="utf-8")).substitute(values) for path, source in sources.items()}


def _discover(root: Path, name: str) -> str:
    """The devices that the vendor in ``root`` finds on its simulated machine, independent of the user's environment.

    ``HamiError`` if it does not run.
    """
    search = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR") if key in os.environ}
    command = [sys.executable, "-m", "hami_plugin", "discover", "--simulate", f"{name}-4", "--json"]
    try:
        tried = subprocess.run(  # noqa: S603  # this program itself
            command,
            env={**kept, "PYTHONPATH": search},
            capture_output=True,
            text=True,
            timeout=TRIAL_S,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise HamiError(f"the new vendor {name!r} found nothing within {TRIAL_S:g} s; nothing was written") from error
    except subprocess.CalledProcessError as error:
        why = (error.stderr or error.stdout).strip()[-500:]
        raise HamiError(f"the new vendor {name!r} does not run; nothing was written: {why}") from error
    return json.dumps(json.loads(tried.stdout), indent=2, sort_keys=True) + "\n"


def _write(root: Path, files: Mapping[str, str]) -> None:
    """Write all of the files, or none. ``HamiError`` names the first that already exists."""
    there = next((path for path in files if (root / path).exists()), None)
    if there:
        raise HamiError(f"{root / there} already exists", hint="remove it, or choose another name or --to")
    made: list[Path] = []
    try:
        for path, text in files.items():
            file = root / path
            _make_folder(file.parent, made)
            with file.open("x", encoding="utf-8") as opened:
                made.append(file)
                opened.write(text)
    except OSError:
        _remove(made)
        raise


def _make_folder(folder: Path, made: list[Path]) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent, made)
        folder.mkdir()
        made.append(folder)


def _remove(made: Iterable[Path]) -> None:
    for path in reversed(list(made)):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)


def _python_path(root: Path) -> str:
    """The prefix of a command that lets it find vendors in ``root``."""
    known = importlib.import_module("vendors").__path__
    return "" if any(Path(folder).parent == root.resolve() for folder in known) else f"PYTHONPATH={root} "
