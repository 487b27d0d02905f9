"""Which metrics and labels a query names. Enough of PromQL's shape for that, and no more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

STRING = re.compile(r""""[^"]*"|'[^']*'""")
GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
NAME = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)(?!\s*\(|[\w:])")
WORDS = {"and", "or", "unless", "bool", "offset"}
Series = Mapping[frozenset[tuple[str, str]], float]


@dataclass(frozen=True)
class Named:
    """``selected`` are the labels that stand in each metric's braces, ``grouped`` those that results are told by."""

    selected: Mapping[str, frozenset[str]]
    grouped: frozenset[str]


def named(query: str) -> Named:
    """What ``query`` names."""
    text = re.sub(r"\[[^\]]*\]", "", STRING.sub("", query))
    grouped = {label for _, inside in GROUPING.findall(text) for label in re.findall(r"\w+", inside)}
    text = GROUPING.sub("", text)
    selected = {name: frozenset(re.findall(r"(\w+)\s*[=!]", inside)) for name, inside in SELECTOR.findall(text)}
    rest = {name: frozenset[str]() for name in NAME.findall(SELECTOR.sub("", text)) if name not in WORDS}
    return Named(selected={**rest, **selected}, grouped=frozenset(grouped))


def unknown(query: str, exported: Mapping[str, frozenset[str]], everywhere: frozenset[str]) -> Iterator[str]:
    """Metrics and labels of ``query`` that nobody exports, in words. ``everywhere``: labels that all series have."""
    found = named(query)
    for name, labels in found.selected.items():
        if name not in exported:
            yield f"no metric {name}"
            continue
        yield from (f"no label {label} of {name}" for label in labels - exported[name] - everywhere)
    of_all = frozenset().union(*(exported.get(name, frozenset()) for name in found.selected))
    yield from (f"no label {label} in {query}" for label in found.grouped - of_all - everywhere)


def exported(text: str) -> dict[str, frozenset[str]]:
    """Every series name of a scrape, with its labels."""
    found: dict[str, frozenset[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, frozenset()) | sample.labels.keys()
    return found


def series(text: str, name: str) -> Series:
    """The samples of one metric in a scrape, by their labels."""
    return {
        frozenset(sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def quotient(text: str, query: str) -> Series:
    """The answer to ``one_metric / other_metric``: samples of equal labels are divided, as Prometheus does."""
    above, below = (series(text, name.strip()) for name in query.split("/"))
    return {labels: value / below[labels] for labels, value in above.items() if labels in below}
