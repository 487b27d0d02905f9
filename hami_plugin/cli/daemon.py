"""``hami-plugin run``: the daemon."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from hami_plugin import __version__
from hami_plugin.cli.options import node_options
from hami_plugin.errors import ConfigError


@click.command(epilog="Example: hami-plugin run --node-name node-1 --config /etc/hami-plugin/config.yaml")
@node_options
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
@click.option("--log-format", type=click.Choice(["auto", "json", "console"]), help="[default: auto]")
@click.option(
    "--check-config",
    is_flag=True,
    help="Say what is wrong with the configuration, by file and line, and end; status 1 if anything is.",
)
def run(kubeconfig: Path | None, check_config: bool, **options: Any) -> None:
    """Run the daemon on this node until SIGTERM. It takes up changes of its configuration meanwhile."""
    if check_config:
        _check(options)
        return
    with ExitStack() as stack:
        with _without_gc():
            from hami_plugin.config.changes import ConfigurationSource  # noqa: PLC0415
            from hami_plugin.daemon.app import serve  # noqa: PLC0415
            from hami_plugin.daemon.node import DaemonProcess  # noqa: PLC0415  # other commands need neither gRPC nor Kubernetes
            from hami_plugin.daemon.startup import StartPlan, files, load_configuration, open_drivers, plan  # noqa: PLC0415
            from hami_plugin.host.paths import HostPaths  # noqa: PLC0415
            from hami_plugin.process.log import logger  # noqa: PLC0415
            from hami_plugin.telemetry.logs import configure  # noqa: PLC0415

            ready = plan(options, os.environ)
            settings = ready.configuration.settings
            host = HostPaths(hook=settings.hook_path, hook_view=settings.hook_path)
            logs = stack.enter_context(closing(configure(settings.log_level, settings.log_format, sys.stderr)))
            for warning in ready.configuration.warnings:
                logger(__name__).warning("configuration", warning=warning)
            process = DaemonProcess(
                configuration=ready.configuration,
                vendors=lambda now: open_drivers(StartPlan(configuration=now, simulated=ready.simulated), host),
                kubeconfig=kubeconfig,
                host=host,
                version=__version__,
                log_lines_dropped=lambda: logs.dropped,
                source=ConfigurationSource(
                    read=partial(load_configuration, options, os.environ, ready.simulated),
                    paths=tuple(path for path in files(options) if path),
                    level=logs.set_level,
                ),
            )
        asyncio.run(serve(process))


def _check(options: Mapping[str, Any]) -> None:
    """Read the configuration as the daemon would, and print what is wrong with it, by file and line."""
    from hami_plugin.daemon.startup import plan  # noqa: PLC0415

    try:
        ready = plan(options, os.environ)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
        click.echo(f"{len(error.problems)} wrong", err=True)
        raise SystemExit(1) from None
    for warning in ready.configuration.warnings:
        click.echo(f"warning: {warning}", err=True)
    sources = ", ".join(ready.configuration.sources) or "defaults"
    click.echo(f"The configuration is valid: {sources}")


@contextmanager
def _without_gc() -> Iterator[None]:
    """Pause garbage collection, and exclude what exists at the end from later collections.

    What the start imports and builds lives as long as the process; collecting it took a seventh of the start.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
