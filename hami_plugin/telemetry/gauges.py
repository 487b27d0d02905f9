"""How a gauge is made of its samples."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily


def gauge(
    name: str, text: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    """One gauge of this daemon: its samples are values of the labels, and a number."""
    family = GaugeMetricFamily(f"hami_plugin_{name}", text, labels=labels)
    for values, number in samples:
        family.add_metric(values, float(number))
    return family
