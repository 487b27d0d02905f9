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
            help="Use a simulated machine, by name (see `hami-plugin discover --help`) or file. "
            "Several of different vendors, parted by commas, make one node.",
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
