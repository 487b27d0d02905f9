"""The command line: each command parses, builds, calls and prints."""

from hami_plugin.cli.main import main

__all__ = ["main"]
