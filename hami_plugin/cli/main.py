"""The command line: all commands, and how errors are printed. Each command parses, builds, calls and prints."""

from __future__ import annotations

import sys
from collections import UserDict
from importlib import import_module
from typing import Any, cast

import click

from cdi.errors import CdiError
from hami_plugin import __version__
from hami_plugin.errors import ConfigError, HamiError

USAGE_ERROR = 2
MAX_PROBLEMS = 50


COMMANDS = {
    "cdi": "hami_plugin.cli.cdi",
    "demo": "hami_plugin.cli.demo",
    "discover": "hami_plugin.cli.devices",
    "doctor": "hami_plugin.cli.doctor",
    "dra": "hami_plugin.cli.dra",
    "explain": "hami_plugin.cli.explain",
    "fit": "hami_plugin.cli.fit",
    "kubectl": "hami_plugin.cli.kubectl",
    "new-vendor": "hami_plugin.cli.new_vendor",
    "node": "hami_plugin.cli.node",
    "partitions": "hami_plugin.cli.partitions",
    "resize": "hami_plugin.cli.resize",
    "run": "hami_plugin.cli.daemon",
    "scheduler": "hami_plugin.cli.scheduler",
    "support-bundle": "hami_plugin.cli.doctor",
    "top": "hami_plugin.cli.top",
    "topology": "hami_plugin.cli.devices",
    "values": "hami_plugin.cli.values",
    "vendors": "hami_plugin.cli.devices",
}
"""The module of each command. Only the one that runs is imported."""


class Imported(UserDict[str, Any]):
    """Commands by name, imported from their modules on first use."""

    def __getitem__(self, name: str) -> click.Command:
        found = super().__getitem__(name)
        if isinstance(found, str):
            found = getattr(import_module(found), name.replace("-", "_"))
        return cast("click.Command", found)


class Commands(click.Group):
    """Turns the project's own errors into one readable message and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            count = len(error.problems)
            click.echo(f"The configuration is invalid ({count} problem{'s'[: count > 1]}):", err=True)
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
        click.echo(f"hami-plugin {__version__} (Python {sys.version.split()[0]})")
        context.exit()


@click.group(
    cls=Commands,
    commands=Imported(COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Try it without hardware: hami-plugin demo, or hami-plugin topology --simulate dgx-1v. "
    'Completion in bash: eval "$(_HAMI_PLUGIN_COMPLETE=bash_source hami-plugin)"',
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def main() -> None:
    """Share accelerators on this Kubernetes node, speaking HAMi's wire protocol."""


@main.command(epilog="Example: hami-plugin version")
@click.pass_context
def version(context: click.Context) -> None:
    """Print the version."""
    _version(context, None, True)
