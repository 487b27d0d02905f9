"""The files that are made from the code and from the chart, and their texts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.charts import facts, one_file, schema
from tests.charts.helm import CHART, ROOT

MADE: Mapping[Path, Callable[[], str]] = {
    CHART / "files/resources.yaml": facts.resources,
    CHART / "files/options.yaml": facts.options,
    CHART / "files/fixed.yaml": facts.fixed,
    CHART / "files/counts.yaml": facts.counts,
    CHART / "files/annotations.yaml": facts.annotations,
    CHART / "values.schema.json": schema.schema,
    ROOT / "hami_plugin/config/chart_values.json": schema.known,
    one_file.FILE: one_file.wanted,
}
"""In this order: the last one is rendered from the others."""


def main() -> None:
    for path, text in MADE.items():
        path.write_text(text(), encoding="utf-8")
        sys.stdout.write(f"written: {path.name}\n")


if __name__ == "__main__":
    main()
