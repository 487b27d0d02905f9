"""``hami-plugin demo``: the real daemon on a simulated node."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from hami_plugin.cli.console import terminal
from hami_plugin.cli.options import profile_names, warnings_only
from hami_plugin.process.concurrency import ended_by_signals


@click.command(epilog="Example: hami-plugin demo --profile dgx-1v")
@click.option(
    "--profile",
    default="dgx-h100",
    show_default=True,
    shell_complete=profile_names,
    help="The simulated machine. Several machines of different vendors, separated by commas, make one node.",
)
@click.option(
    "--all", "everywhere", is_flag=True, help="Run it on every machine that can be simulated, and print a table."
)
@click.option("--json", "as_json", is_flag=True, help="Print all results as JSON.")
@click.option("--verbose", "-v", is_flag=True, help="Print everything that each step found.")
@click.option("--keep", is_flag=True, help="Keep the working directory, with the daemon's log.")
@click.option(
    "--serve", is_flag=True, help="Keep the node running until SIGTERM, to inspect its metrics and annotations."
)
@click.option("--dra", is_flag=True, help="Show a ResourceClaim's life instead: the devices go by claims.")
def demo(profile: str, *, everywhere: bool, as_json: bool, verbose: bool, keep: bool, serve: bool, dra: bool) -> None:
    """Run the real daemon against a simulated machine, kubelet and API server, and show what it does.

    The exit status is 1 if a step fails. SIGINT and SIGTERM end the demo and the daemon.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC's notes on closed connections would disturb the board
    from hami_plugin.demo.board import Board  # noqa: PLC0415
    from hami_plugin.demo.play import play, play_everywhere  # noqa: PLC0415

    if dra and everywhere:
        raise click.UsageError("--dra shows one machine; leave --all out")
    board = None if as_json else Board(terminal(), verbose=verbose, animated=sys.stdout.isatty())
    if everywhere:
        playing = play_everywhere()
    else:
        playing = play(profile, board=board, as_json=as_json, keep=keep, serve=serve, dra=dra)
    with warnings_only():
        held = asyncio.run(ended_by_signals(playing))
    sys.exit(0 if held else 1)
