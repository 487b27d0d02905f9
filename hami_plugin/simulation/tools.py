"""Fake vendor tools of a simulated machine: scripts that print what the real ones do, hang, or fail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hami_plugin.simulation.trees import Tree

_SCRIPT = """\
#!/bin/sh
here="$0.says"
[ -e "$here/hangs" ] && exec sleep 3600
cat "$here/$(echo "$*" | tr ' /' '__')"
"""


def tool_path(tree: Tree, name: str) -> Path:
    """Where the tool stands."""
    return tree.root / "bin" / name


def write_tool(tree: Tree, name: str, says: Mapping[str, str]) -> None:
    """A tool that answers each of the command lines in ``says``, and fails for any other."""
    for arguments, text in says.items():
        tree.write(f"bin/{name}.says/{arguments.replace(' ', '_').replace('/', '_')}", text)
    tree.remove(f"bin/{name}.says/hangs")
    tree.write(f"bin/{name}", _SCRIPT)
    tool_path(tree, name).chmod(0o755)


def hang_tool(tree: Tree, name: str) -> None:
    """From now on the tool does not come back."""
    tree.write(f"bin/{name}.says/hangs", "")
