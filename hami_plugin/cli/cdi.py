"""``hami-plugin cdi``: look at CDI specs, of this machine, of a simulated one, or of files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hami_plugin.cli.options import configuration_options, quietly
from hami_plugin.errors import HamiError

if TYPE_CHECKING:
    from cdi.registry import Registry
    from hami_plugin.describing import Described

DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))

directory_option = click.option(
    "--dir",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="A spec directory; a later one outranks an earlier one.  [default: /etc/cdi, /var/run/cdi]",
)


@click.group()
def cdi() -> None:
    """Container Device Interface: what specs say, and what a container would receive."""


@cdi.command(epilog="Example: hami-plugin cdi generate --simulate dgx-h100 --format yaml")
@configuration_options
@click.option("--format", "form", type=click.Choice(["json", "yaml"]), default="json", show_default=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Write each spec into this directory, under the name that the daemon uses.",
)
@click.option("--explain", is_flag=True, help="Also say where things were looked for (on standard error).")
def generate(form: str, output: Path | None, explain: bool, **options: Any) -> None:
    """Describe this machine's devices, as the daemon would. Exit 1 if a device had to be left out."""
    specs = _described(options)
    for one in specs:
        text = one.text(f".{form}")
        if output is None:
            click.echo(text, nl=False)
            continue
        path = output / Path(one.file).with_suffix(f".{form}").name
        _store(path, text)
        click.echo(f"{path}: {len(one.spec.devices)} names of kind {one.spec.kind}")
    for one in specs:
        for line in (*(one.explained() if explain else ()), *one.problems):
            click.echo(line, err=True)
    sys.exit(any(one.problems for one in specs))


@cdi.command("list", epilog="Example: hami-plugin cdi list --dir /var/run/cdi")
@configuration_options
@directory_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_devices(directories: Sequence[Path], as_json: bool, **options: Any) -> None:
    """Print the devices that a runtime would find, each with its file. Exit 1 if files are broken or in conflict."""
    found = _view(directories, options)
    devices = {str(name): d.source.file for name in found.names if (d := found.definition(name))}
    conflicts = {str(name): files for name, files in found.conflicts.items()}
    problems = [str(problem) for problem in found.problems]
    if as_json:
        click.echo(json.dumps({"devices": devices, "conflicts": conflicts, "problems": problems}, indent=2))
    else:
        for name, file in devices.items():
            click.echo(f"{name}  {file}")
        for name, files in conflicts.items():
            click.echo(f"{name} is defined by {' and '.join(files)}; a runtime takes neither", err=True)
        for problem in problems:
            click.echo(problem, err=True)
    sys.exit(bool(conflicts or problems))


@cdi.command(epilog="Example: hami-plugin cdi validate /etc/cdi/*.yaml")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True))
def validate(files: Sequence[Path]) -> None:
    """Say everything in FILES that a runtime would refuse, or start no container with. Exit 1 if there is anything."""
    from cdi.documents import read, to_json  # noqa: PLC0415
    from cdi.errors import InvalidSpecError  # noqa: PLC0415
    from hami_plugin.describing import yaml_reader  # noqa: PLC0415

    bad = 0
    for file in files:
        try:
            spec = read(file.read_text(encoding="utf-8"), str(file), yaml=yaml_reader)
            to_json(spec, str(file))  # refuses what runtimes read, but start no container with
        except InvalidSpecError as error:
            bad += 1
            for problem in error.problems:
                click.echo(str(problem), err=True)
        except UnicodeDecodeError as error:
            bad += 1
            click.echo(f"{file}: is not text: {error}", err=True)
        else:
            click.echo(f"{file}: {len(spec.devices)} devices of kind {spec.kind}")
    sys.exit(bool(bad))


@cdi.command(epilog="Example: hami-plugin cdi resolve hami.io/gpu=0 --simulate dgx-h100")
@click.argument("names", nargs=-1, required=True)
@configuration_options
@directory_option
def resolve(names: Sequence[str], directories: Sequence[Path], **options: Any) -> None:
    """Print what a container receives that asks for NAMES, as a runtime would add it."""
    from cdi.blocks import yaml_text  # noqa: PLC0415
    from cdi.errors import UnresolvableError  # noqa: PLC0415
    from cdi.plain import plain_edits  # noqa: PLC0415

    found = _view(directories, options)
    try:
        edits = found.resolve(names)
    except UnresolvableError as error:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in error.reasons.items())
        raise HamiError(
            f"{error.message} ({reasons})", hint="hami-plugin cdi list prints those that are there"
        ) from error
    click.echo(yaml_text(plain_edits(edits)), nl=False)


def _described(options: dict[str, Any]) -> list[Described]:
    from hami_plugin.describing import described  # noqa: PLC0415  # needs the vendors

    with quietly():
        return list(described(options, os.environ))


def _view(directories: Sequence[Path], options: dict[str, Any]) -> Registry:
    """Of a simulated machine where one is named, else of directories."""
    from hami_plugin.describing import view  # noqa: PLC0415

    return view(directories or DIRECTORIES, _described(options) if options["simulate"] else ())


def _store(path: Path, text: str) -> None:
    from cdi.errors import StoreError  # noqa: PLC0415
    from cdi.store import Store  # noqa: PLC0415

    try:
        Store(path.parent, path.name.split(".")[0]).write(path.name, text)
    except StoreError as error:
        raise HamiError(error.message, hint=error.hint) from error
