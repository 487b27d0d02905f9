"""The command line: all commands, and what users read of errors. Each command parses, builds, calls and prints."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.metadata import version as distribution_version
from typing import Any

import click

from cdi.errors import CdiError
from hami_plugin.aio import ended_by_signals
from hami_plugin.cli.cdi import cdi
from hami_plugin.cli.console import terminal
from hami_plugin.cli.daemon import run
from hami_plugin.cli.deciding import conformance, fit
from hami_plugin.cli.devices import discover, topology, vendors
from hami_plugin.cli.options import profile_names, quietly
from hami_plugin.cli.scheduler import scheduler
from hami_plugin.errors import ConfigError, HamiError

USAGE_ERROR = 2
MAX_PROBLEMS = 50


class Commands(click.Group):
    """Turns the project's own errors into one readable message and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            count = len(error.problems)
            click.echo(f"The configuration cannot be used ({count} problem{'s'[: count > 1]}):", err=True)
            for problem in error.problems[:MAX_PROBLEMS]:
                click.echo(f"  - {problem}", err=True)
            if count > MAX_PROBLEMS:
                click.echo(f"  and {count - MAX_PROBLEMS} more", err=True)
            ctx.exit(USAGE_ERROR)
        except (HamiError, CdiError) as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(1)
        except OSError as error:
            if error.filename is None:
                raise
            click.echo(f"Error: {error.filename}: {error.strerror}", err=True)
            ctx.exit(1)


def _version(context: click.Context, _parameter: click.Parameter | None, asked: bool) -> None:
    if asked:
        click.echo(f"hami-plugin {distribution_version('hami-plugin')} (Python {sys.version.split()[0]})")
        context.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Try it without hardware: hami-plugin demo, or hami-plugin topology --simulate dgx-1v. "
    'Completion in bash: eval "$(_HAMI_PLUGIN_COMPLETE=bash_source hami-plugin)"',
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def main() -> None:
    """Share accelerators on this Kubernetes node, speaking HAMi's wire protocol."""


for command in (run, scheduler, discover, topology, vendors, fit, conformance, cdi):
    main.add_command(command)


@main.command(epilog="Example: hami-plugin version")
@click.pass_context
def version(context: click.Context) -> None:
    """Print the version."""
    _version(context, None, True)


@main.command(epilog="Example: hami-plugin demo --profile dgx-1v")
@click.option(
    "--profile",
    default="dgx-h100",
    show_default=True,
    shell_complete=profile_names,
    help="The simulated machine. Several of different vendors, parted by commas, make one node.",
)
@click.option("--all", "everywhere", is_flag=True, help="On every machine that can be simulated, as a table.")
@click.option("--json", "as_json", is_flag=True, help="The whole outcome as JSON.")
@click.option("--verbose", "-v", is_flag=True, help="Everything that each step found out.")
@click.option("--keep", is_flag=True, help="Keep the working directory, with the daemon's log.")
@click.option("--serve", is_flag=True, help="Keep the node up, to look at its metrics and annotations, until SIGTERM.")
def demo(profile: str, *, everywhere: bool, as_json: bool, verbose: bool, keep: bool, serve: bool) -> None:
    """Run the real daemon against a simulated machine, kubelet and API server, and show what it does.

    Exit 1 if a step fails. SIGINT and SIGTERM end it, and the daemon with it.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its notes on connections that end are no part of the board
    from hami_plugin.demo import Board, play, play_everywhere  # noqa: PLC0415

    board = None if as_json else Board(terminal(), verbose=verbose, animated=sys.stdout.isatty())
    playing = play_everywhere() if everywhere else play(profile, board=board, as_json=as_json, keep=keep, serve=serve)
    with quietly():
        held = asyncio.run(ended_by_signals(playing))
    sys.exit(0 if held else 1)
