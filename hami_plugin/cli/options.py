"""What several commands have in common: where they find their configuration, and how they keep quiet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def quietly() -> AbstractContextManager[object]:
    """Logging for commands that print an answer: warnings only, and beside it."""
    from hami_plugin.telemetry.logs import configure  # noqa: PLC0415

    return closing(configure("warning", "auto", sys.stderr))


def words_of(*known: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """The check of an option whose value is words out of ``known``, separated by commas."""

    def checked(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
        for word in value.split(","):
            if word.strip() not in known:
                raise click.BadParameter(f"{word.strip()!r} is not one of {', '.join(known)}")
        return value

    return checked


def profile_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """For a shell's completion: the simulated machines whose names go on like this, also after a comma."""
    from hami_plugin.simulation.machines import machine_names  # noqa: PLC0415

    before, comma, begun = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in machine_names() if name.startswith(begun)]


def common_options(command: F) -> F:
    """The options by which every command finds the files of the whole cluster."""
    path = click.Path(path_type=Path, dir_okay=False)
    config = click.option("--config", type=path, envvar="HAMI_PLUGIN_CONFIG", help="The daemon's own YAML file.")
    device_config = click.option(
        "--device-config",
        type=path,
        envvar="CONFIG_FILE",
        help="HAMi's device-config.yaml. Default: /device-config.yaml where it exists.",
    )
    return config(device_config(command))


def configuration_options(command: F) -> F:
    """The options by which every command of a node finds its configuration."""
    path = click.Path(path_type=Path, dir_okay=False)
    options = (
        click.option(
            "--node-config",
            type=path,
            help="HAMi's per-node config.json. Default: /config/config.json where it exists.",
        ),
        click.option(
            "--nvml-library", type=path, help="The driver's NVML library, where the loader does not find it by itself."
        ),
        click.option(
            "--simulate",
            metavar="PROFILE",
            shell_complete=profile_names,
            help="Use a simulated machine, by name (see `hami-plugin discover --help`) or file. "
            "Several of different vendors, separated by commas, make one node.",
        ),
        click.option(
            "--simulation-dir",
            type=click.Path(path_type=Path, file_okay=False),
            help="Where the simulated machine's state is kept, so that faults can be injected from outside.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return common_options(command)
