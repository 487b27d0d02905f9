"""The check of dashboards and alerts would notice a metric or label that is not exported."""

import pytest

from tests.support.promql import exported, named, quotient, unknown

SCRAPE = """
# TYPE a gauge
a{x="1",y="2"} 6
a{x="2",y="2"} 6
# TYPE b gauge
b{x="1",y="2"} 4
# TYPE c histogram
c_bucket{le="1",x="1"} 1
c_bucket{le="+Inf",x="1"} 1
c_count{x="1"} 1
c_sum{x="1"} 1
"""


def test_names_and_labels_are_found_wherever_they_stand():
    query = 'sum by (x, node) (rate(a{y!="by (z)",node=~"$node"}[5m])) / on (x) group_left (y) b == bool 0 or absent(c)'

    found = named(query)

    assert found.selected == {"a": {"y", "node"}, "b": set(), "c": set()}
    assert found.grouped == {"x", "y", "node"}


@pytest.mark.parametrize(
    ("query", "problems"),
    [
        ('a{node="n"} / b', []),
        ("histogram_quantile(0.99, sum by (le, x) (rate(c_bucket[5m])))", []),
        ("sum(a) / sum(d)", ["no metric d"]),
        ('a{z="1"}', ["no label z of a"]),
        ("sum by (le) (a)", ["no label le in sum by (le) (a)"]),
    ],
)
def test_what_is_not_exported_is_told(query, problems):
    assert list(unknown(query, exported(SCRAPE), frozenset({"node"}))) == problems


def test_series_of_equal_labels_are_divided():
    assert quotient(SCRAPE, "a / b") == {frozenset({("x", "1"), ("y", "2")}): 1.5}
