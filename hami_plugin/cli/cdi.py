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
    from hami_plugin.cli.cdi_specs import Described

directory_option = click.option(
    "--dir",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="A spec directory; a later one outranks an earlier one. Not with --simulate, whose specs are in no "
    "directory.  [default: the configuration's cdiDirs, which are /etc/cdi and /var/run/cdi]",
)


@click.group(
    epilog="Try it without hardware: hami-plugin cdi list --simulate dgx-h100. Exit statuses: 0 all is well, 1 "
    "something is to be mended, 2 the command or the configuration cannot be understood. No daemon and no "
    "cluster is asked."
)
def cdi() -> None:
    """Container Device Interface: what specs say, and what a container would receive.

    A runtime that is asked for a device by its CDI name, as example.com/gpu=0, looks into spec files for what that
    means. `generate` shows the specs that the daemon writes; `list` which names a runtime finds, and which it refuses;
    `validate` what is wrong with a file; `resolve` what a container receives for a name.
    """


@cdi.command(
    short_help="Print this machine's specs, as the daemon writes them.",
    epilog="Example: hami-plugin cdi generate --simulate dgx-h100 --format yaml",
)
@configuration_options
@click.option(
    "--format", "form", type=click.Choice(["json", "yaml"]), default="json", show_default=True, help="Of the spec."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write each spec into this directory, which is made where it is missing, under the name that the daemon uses. "
    "The daemon's own are JSON; a second one in YAML beside them would be in conflict.",
)
@click.option("--explain", is_flag=True, help="Also say where things were looked for (on standard error).")
def generate(form: str, output: Path | None, explain: bool, **options: Any) -> None:
    """Describe this machine's devices, as the daemon would: one spec for each family, on standard output.

    Exit 1 if a device had to be left out; the reason is on standard error.
    """
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


@cdi.command(
    "list",
    short_help="Print the names that a runtime finds, and where.",
    epilog="Example: hami-plugin cdi list --dir /var/run/cdi",
)
@configuration_options
@directory_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_devices(directories: Sequence[Path], as_json: bool, **options: Any) -> None:
    """Print the names that a runtime would find, each with its file.

    Exit 1 if files are broken or in conflict: a name that two files of one directory define is refused by runtimes. One
    that a later directory defines once more is taken from there; if one of the two is ours, the daemon calls the device
    CDIConflict all the same.
    """
    found = _view(directories, options)
    conflicts = {str(name): files for name, files in found.conflicts.items()}
    problems = [str(problem) for problem in found.problems]
    files = {str(name): found.files(name) for name in found.names}
    if as_json:
        devices = {name: of_name[-1] for name, of_name in files.items()}
        outranked = {name: of_name[:-1] for name, of_name in files.items() if of_name[1:]}
        answer = {"devices": devices, "outranked": outranked, "conflicts": conflicts, "problems": problems}
        click.echo(json.dumps(answer, indent=2))
    else:
        for name, (*others, file) in files.items():
            click.echo(f"{name}  {file}" + (f"  (outranks {' and '.join(others)})" if others else ""))
        for name, of_name in conflicts.items():
            click.echo(f"{name} is defined by {' and '.join(of_name)}; a runtime takes neither, remove one", err=True)
        for problem in problems:
            click.echo(problem, err=True)
    sys.exit(bool(conflicts or problems))


@cdi.command(
    short_help="Say what a runtime would refuse in files.", epilog="Example: hami-plugin cdi validate /etc/cdi/*.yaml"
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True))
def validate(files: Sequence[Path]) -> None:
    """Say everything in FILES that a runtime would refuse, or start no container with.

    Each problem comes with its file, device and field; exit 1 if there is any. Each file is looked at alone;
    `hami-plugin cdi list` sees them together.
    """
    from cdi.documents import read, to_json  # noqa: PLC0415
    from cdi.errors import InvalidSpecError  # noqa: PLC0415
    from hami_plugin.host.bounded_yaml import read_yaml  # noqa: PLC0415

    bad = 0
    for file in files:
        try:
            spec = read(file.read_text(encoding="utf-8"), str(file), yaml=read_yaml)
            to_json(spec, str(file))  # refuses what runtimes read, but start no container with
        except InvalidSpecError as error:
            bad += 1
            for problem in error.problems:
                click.echo(str(problem), err=True)
        except UnicodeDecodeError as error:
            bad += 1
            click.echo(f"{file}: is not text in UTF-8: {error.reason} at byte {error.start}", err=True)
        else:
            click.echo(f"{file}: in order, {len(spec.devices)} names of kind {spec.kind}")
    sys.exit(bool(bad))


@cdi.command(
    short_help="Print what a container receives for names.",
    epilog="Example: hami-plugin cdi resolve 0 --simulate dgx-h100",
)
@click.argument("names", nargs=-1, required=True)
@configuration_options
@directory_option
def resolve(names: Sequence[str], directories: Sequence[Path], **options: Any) -> None:
    """Print what a container receives that asks for NAMES, as a runtime would add it.

    A name is vendor/class=device, as `hami-plugin cdi list` prints it; the device alone is enough where only one kind
    has one of that name. Exit 1 if one does not resolve, and then nothing is printed: no container would start.
    """
    from cdi.blocks import yaml_text  # noqa: PLC0415
    from cdi.errors import UnresolvableError  # noqa: PLC0415
    from cdi.plain import plain_edits  # noqa: PLC0415
    from hami_plugin.cli.cdi_specs import full_name  # noqa: PLC0415

    found = _view(directories, options)
    try:
        edits = found.resolve([full_name(name, found) for name in names])
    except UnresolvableError as error:
        reasons = "; ".join(f"{name} does not resolve: {reason}" for name, reason in error.reasons.items())
        raise HamiError(reasons, hint=f"`{_list_command(directories, options)}` prints the names that do") from error
    click.echo(yaml_text(plain_edits(edits)), nl=False)


def _list_command(directories: Sequence[Path], options: dict[str, Any]) -> str:
    """The call of ``list`` that looks at the same specs."""
    simulated = [f"--simulate {options['simulate']}"] if options["simulate"] else []
    return " ".join(["hami-plugin cdi list", *simulated, *(f"--dir {directory}" for directory in directories)])


def _described(options: dict[str, Any]) -> list[Described]:
    from hami_plugin.cli.cdi_specs import described  # noqa: PLC0415  # needs the vendors

    with quietly():
        return list(described(options, os.environ))


def _view(directories: Sequence[Path], options: dict[str, Any]) -> Registry:
    """Of a simulated machine where one is named, else of directories. A missing one is told: it may be a slip."""
    from hami_plugin.cli.cdi_specs import configured_directories, view  # noqa: PLC0415

    if options["simulate"]:
        if directories:
            raise click.UsageError(
                "--dir and --simulate exclude each other: specs of a simulated machine are in no file"
            )
        return view((), _described(options))
    looked_at = directories or configured_directories(options, os.environ)
    for directory in looked_at:
        if not directory.exists():
            click.echo(f"{directory} is not there; runtimes find nothing in it", err=True)
    return view(looked_at)


def _store(path: Path, text: str) -> None:
    from cdi.errors import StoreError  # noqa: PLC0415
    from cdi.store import Store  # noqa: PLC0415

    try:
        Store(path.parent, path.name.split(".")[0]).write(path.name, text)
    except StoreError as error:
        raise HamiError(error.message, hint=error.hint) from error
