"""The examples in docs/reference/cdi-examples.md are what the commands print."""

import os
import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from hami_plugin.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cdi-examples.md"
EXAMPLE = re.compile(r"^```console\n\$ hami-plugin (cdi .*)\n((?:.*\n)*?)```$", flags=re.MULTILINE)
MAX_LINES = 24


def printed(call, folder):
    """What the command prints, both ways together; a long answer only as far as it is shown, ``folder`` as /tmp."""
    result = CliRunner().invoke(main, shlex.split(call))
    lines = result.output.replace(str(folder), "/tmp").splitlines()
    shown = [*lines[:MAX_LINES], "..."] if len(lines) > MAX_LINES else lines
    return "".join(f"{line}\n" for line in shown)


def test_the_examples_are_what_the_commands_print(monkeypatch, tmp_path):
    """One after the other in one directory: a later one may read what an earlier one has written."""
    page = PAGE.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs").mkdir()

    wanted = EXAMPLE.sub(lambda found: f"```console\n$ hami-plugin {found[1]}\n{printed(found[1], tmp_path)}```", page)

    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(wanted, encoding="utf-8")
        page = wanted
    assert len(EXAMPLE.findall(page)) >= 4
    assert page == wanted, "write it anew: UPDATE_DOCS=1 make test"
