"""``hami-plugin run``: the daemon."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from hami_plugin import __version__
from hami_plugin.cli.options import node_options


@click.command(epilog="Example: hami-plugin run --node-name node-1 --config /etc/hami-plugin/config.yaml")
@node_options
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
@click.option("--log-format", type=click.Choice(["auto", "json", "console"]), help="[default: auto]")
def run(kubeconfig: Path | None, **options: Any) -> None:
    """Run the daemon on this node until SIGTERM."""
    with ExitStack() as stack:
        with _without_gc():
            from hami_plugin.daemon.app import Process, serve  # noqa: PLC0415  # other commands need neither gRPC nor Kubernetes
            from hami_plugin.daemon.startup import opened, plan  # noqa: PLC0415
            from hami_plugin.host.paths import HostPaths  # noqa: PLC0415
            from hami_plugin.log import logger  # noqa: PLC0415
            from hami_plugin.telemetry.logs import configure  # noqa: PLC0415

            ready = plan(options, os.environ)
            settings = ready.configuration.settings
            host = HostPaths(hook=settings.hook_path, hook_view=settings.hook_path)
            logs = stack.enter_context(closing(configure(settings.log_level, settings.log_format, sys.stderr)))
            for warning in ready.configuration.warnings:
                logger(__name__).warning("configuration", warning=warning)
            process = Process(
                configuration=ready.configuration,
                vendors=partial(opened, ready, host),
                kubeconfig=kubeconfig,
                host=host,
                version=__version__,
                log_lines_dropped=lambda: logs.dropped,
            )
        asyncio.run(serve(process))


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
