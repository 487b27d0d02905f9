"""``python -m tests.hami FILE...``: ask our code questions that HAMi's code has answered."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hami_plugin.errors import HamiError
from hami_plugin.sdk import load_vendor
from tests.hami.catalog import Catalog
from tests.hami.run import about, as_json, asked, documented_in, lines, read

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"


@click.command(epilog="Example: python -m tests.hami tests/vectors/*_fit.jsonl.xz")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--vendor", help="Only the questions about this vendor's families.")
@click.option("--json", "in_json", is_flag=True, help="Every disagreement, as JSON.")
@click.option(
    "--differences",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    default=PAGE,
    help="The page that lists the differences on purpose.  [default: docs/differences.md]",
)
def main(files: tuple[Path, ...], vendor: str | None, differences: Path, *, in_json: bool) -> None:
    """Ask our code questions that HAMi's code has answered. Exit 1 if an answer differs without a written reason."""
    try:
        catalog = Catalog()
        words = catalog.words(load_vendor(vendor).name) if vendor else ()
        documented = documented_in(differences.read_text(encoding="utf-8"))
        outcomes = {file.name: asked(about(read(file), words), catalog, documented) for file in files}
    except HamiError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(as_json(outcomes), indent=2) if in_json else "\n".join(lines(outcomes)))
    sys.exit(any(outcome.unexplained for outcome in outcomes.values()))


if __name__ == "__main__":
    main(prog_name="python -m tests.hami")
