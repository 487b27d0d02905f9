"""Options that several commands share: the configuration files, and quiet logging."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def warnings_only() -> AbstractContextManager[object]:
    """Log only warnings, to standard error, for commands that print an answer."""
    from hami_plugin.telemetry.logs import configure  # noqa: PLC0415

    return closing(configure("warning", "auto", sys.stderr))


def names_of(*known: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """A callback for an option with names out of ``known``, separated by commas."""

    def checked(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
        for name in value.split(","):
            if name.strip() not in known:
                raise click.BadParameter(f"{name.strip()!r} is not one of {', '.join(known)}")
        return value

    return checked


def profile_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: simulated machines that start with ``incomplete``, also after a comma."""
    from hami_plugin.simulation.machines import machine_names  # noqa: PLC0415

    before, comma, begun = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in machine_names() if name.startswith(begun)]


kubeconfig_option = click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Default: $KUBECONFIG, or the pod's service account."
)


def common_options(command: F) -> F:
    """The options for the files of the whole cluster."""
    path = click.Path(path_type=Path, dir_okay=False)
    config = click.option("--config", type=path, envvar="HAMI_PLUGIN_CONFIG", help="The daemon's own YAML file.")
    device_config = click.option(
        "--device-config",
        type=path,
        envvar="CONFIG_FILE",
        help="HAMi's device-config.yaml. Default: /device-config.yaml, if it exists.",
    )
    return config(device_config(command))


def configuration_options(command: F) -> F:
    """The options for a node's configuration."""
    path = click.Path(path_type=Path, dir_okay=False)
    options = (
        click.option(
            "--node-config",
            type=path,
            help="HAMi's per-node config.json. Default: /config/config.json, if it exists.",
        ),
        click.option(
            "--nvml-library", type=path, help="Path of the driver's NVML library, if the loader does not find it."
        ),
        click.option(
            "--simulate",
            metavar="PROFILE",
            shell_complete=profile_names,
            help="Use a simulated machine, by name (see `hami-plugin discover --list-profiles`) or file. "
            "Several machines of different vendors, separated by commas, make one node.",
        ),
        click.option(
            "--simulation-dir",
            type=click.Path(path_type=Path, file_okay=False),
            help="Directory of the simulated machine's state, for injecting faults from another process.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return common_options(command)


def node_options(command: F) -> F:
    """The options for a node's configuration, and for where the daemon finds its peers there."""
    path = click.Path(path_type=Path)
    options = (
        click.option("--node-name", help="This node's name in Kubernetes. [env: NODE_NAME]"),
        click.option("--kubelet-dir", type=path, help="Directory of kubelet.sock and of the daemon's sockets."),
        click.option("--pod-resources-socket", type=path, help="The kubelet's PodResources socket."),
        kubeconfig_option,
        click.option("--hook-path", type=path, help="HAMi's hook path on the host. [env: HOOK_PATH]"),
        click.option("--state-dir", type=path, help="Directory of the daemon's state: journal and device health."),
        click.option(
            "--http", metavar="HOST:PORT", help="Address of /healthz, /readyz and /metrics.  [default: 0.0.0.0:9394]"
        ),
    )
    for option in reversed(options):
        command = option(command)
    return configuration_options(command)
