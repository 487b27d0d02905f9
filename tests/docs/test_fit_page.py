"""The example in docs/reference/fit-example.md is what the command prints."""

import os
from pathlib import Path

from click.testing import CliRunner

from hami_plugin.cli import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "fit-example.md"
CALL = "fit docs/examples/fit/pod.yaml --simulate dgx-h100 --pods docs/examples/fit/pods.yaml --explain"
START, END = "<!-- example: what the command prints; UPDATE_DOCS=1 make test writes it anew -->\n", "<!-- /example -->"


def test_the_example_is_what_the_command_prints(monkeypatch):
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(main, CALL.split())
    wanted = f"\n```\n$ hami-plugin {CALL}\n{result.output}```\n\n"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    shown, _, after = rest.partition(END)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(f"{before}{START}{wanted}{END}{after}", encoding="utf-8")
        shown = wanted

    assert result.exit_code == 1
    assert shown == wanted, "write it anew: UPDATE_DOCS=1 make test"
