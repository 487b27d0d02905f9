"""``hami-plugin scheduler``: the extender of kube-scheduler and the admission webhook."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click

from hami_plugin import __version__
from hami_plugin.cli.options import common_options, kubeconfig_option

_FILE = click.Path(path_type=Path, dir_okay=False)

EPILOG = """\b
In one pod with kube-scheduler, with the webhook:
  hami-plugin scheduler --tls-cert /tls/tls.crt --tls-key /tls/tls.key
\b
From a shell, on the loopback address, without TLS:
  hami-plugin scheduler --kubeconfig ~/.kube/config --listen 127.0.0.1:9398 --http 127.0.0.1:9395
\b
Check whether it is ready, or why not:
  curl --insecure https://127.0.0.1:9398/readyz
"""


@click.command(epilog=EPILOG, short_help="Serve kube-scheduler (extender) and the API server (webhook).")
@common_options
@kubeconfig_option
@click.option(
    "--scheduler-name", help="Name of the scheduler that pods with devices are assigned to.  [default: hami-scheduler]"
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address of /filter, /bind, /webhook and the probes.  [default: 0.0.0.0:9398]",
)
@click.option(
    "--tls-cert", type=_FILE, help="Certificate of --listen, with its chain, in PEM. Reloaded when it is replaced."
)
@click.option("--tls-key", type=_FILE, help="Key of --tls-cert, in PEM, without a password.")
@click.option(
    "--client-ca",
    type=_FILE,
    help="CA certificate, in PEM. Its client certificates may filter and bind from other hosts.",
)
@click.option(
    "--webhook-client-ca",
    type=_FILE,
    help="CA certificate, in PEM, of the API server's client certificate. The webhook then serves only its clients.",
)
@click.option(
    "--webhook-client-name",
    multiple=True,
    help="Common name that such a certificate may have. Can be repeated.  [default: any]",
)
@click.option(
    "--extender-peers",
    type=click.Choice(["loopback", "any"]),
    help="Who may filter and bind: only a kube-scheduler on this host or in this pod, or anyone.  [default: loopback]",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Address of /healthz, /readyz and /metrics without TLS.  [default: 0.0.0.0:9395]",
)
@click.option(
    "--gpu-scheduler-policy",
    help="Order in which a node's devices are tried, unless the pod sets one.  [default: spread]",
)
@click.option(
    "--node-scheduler-policy",
    type=click.Choice(["binpack", "spread"]),
    help="Which nodes are preferred, unless the pod sets it.  [default: binpack]",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
@click.option("--log-format", type=click.Choice(["auto", "json", "console"]), help="[default: auto]")
def scheduler(kubeconfig: Path | None, **options: Any) -> None:
    """Schedule pods with devices, until SIGTERM. It takes up changes of its configuration meanwhile.

    kube-scheduler calls it as an extender (/filter, /bind), and the API server as an admission webhook (/webhook). It
    replaces HAMi's scheduler, and serves nodes with HAMi's device plugins as well as ours.
    """
    from hami_plugin.config.changes import ConfigurationSource  # noqa: PLC0415
    from hami_plugin.process.log import logger  # noqa: PLC0415
    from hami_plugin.scheduler.extender.app import (  # noqa: PLC0415  # other commands need no Kubernetes
        SchedulerProcess,
        configured,
        files,
        serve,
    )
    from hami_plugin.telemetry.logs import configure  # noqa: PLC0415

    configuration = configured(options, os.environ)
    settings = configuration.settings
    with closing(configure(level=settings.log_level, format=settings.log_format, stream=sys.stderr)) as logs:
        for warning in configuration.warnings:
            logger(__name__).warning("configuration", warning=warning)
        process = SchedulerProcess(
            configuration=configuration,
            kubeconfig=kubeconfig,
            version=__version__,
            log_lines_dropped=lambda: logs.dropped,
            source=ConfigurationSource(
                read=partial(configured, options, os.environ), paths=files(options), level=logs.set_level
            ),
        )
        asyncio.run(serve(process))
