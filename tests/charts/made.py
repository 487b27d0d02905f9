"""The files that are made from the code and from the chart, and their texts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from tests.charts import facts, schema
from tests.charts.helm import CHART, ROOT, rendered

HEAD = """\
# hami-plugin on every accelerator node: kubectl apply -f daemonset.yaml
# The chart renders this file (make manifests); charts/hami-plugin has all that can be set, and the scheduler too.
#
# What to edit before you apply it:
#   image             where your registry keeps the image that `make image` made (search for "image: hami-plugin")
#   nodeSelector      the label of your accelerator nodes: kubectl label node NODE gpu=on (search for "nodeSelector")
#   runtimeClassName  if NVIDIA's container runtime is not the default runtime of those nodes
#   for CDI           the mounts and volumes called driver-root and runtime (search for "CDI"); docs/cdi.md tells when
# HAMi's own device plugin must not run on the same nodes: both would serve the same resource. HAMi's scheduler and
# webhook stay as they are.
"""


def one_file() -> str:
    """daemonset.yaml: the daemon as the chart renders it, in one file for `kubectl apply`."""
    values = yaml.safe_load((CHART / "daemonset-values.yaml").read_text(encoding="utf-8"))
    text = re.sub(r"^# Source: .*\n", "", rendered(values).text, flags=re.MULTILINE)
    text = re.sub(r" +$", "", text.removeprefix("---\n"), flags=re.MULTILINE)
    return HEAD + re.sub(r"\n+(?=---\n|\Z)", "\n", text)


MADE: Mapping[Path, Callable[[], str]] = {
    CHART / "files/resources.yaml": facts.resources,
    CHART / "files/options.yaml": facts.options,
    CHART / "files/fixed.yaml": facts.fixed,
    CHART / "files/counts.yaml": facts.counts,
    CHART / "files/annotations.yaml": facts.annotations,
    CHART / "values.schema.json": schema.schema,
    ROOT / "hami_plugin/config/chart_values.json": schema.known,
    ROOT / "daemonset.yaml": one_file,
}
"""In this order: the last one is rendered from the others."""


def main() -> None:
    for path, text in MADE.items():
        path.write_text(text(), encoding="utf-8")
        sys.stdout.write(f"written: {path.name}\n")


if __name__ == "__main__":
    main()
