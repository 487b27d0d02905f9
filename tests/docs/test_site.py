"""The documentation as a site: every page is in its navigation. `make docs` builds it; this needs no MkDocs."""

from collections import Counter
from pathlib import Path

import pytest
import yaml

from tools.site_links import without_outer_links

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """Reads the names of Python functions as text."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda _loader, name, _node: name)


def pages(entry):
    """All pages below an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    inner = entry if isinstance(entry, list) else entry.values()
    return [page for one in inner for page in pages(one)]


def test_every_page_is_in_the_navigation_once():
    site = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)

    written = Counter(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
    assert Counter(pages(site["nav"])) == written


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see [the page](cdi.md#kinds) and [it](#here)", None),
        ("see [the site](https://example.org/../x)", None),
        ("see [the chart](../charts/hami-plugin/Chart.yaml), then [`x`](../README.md#a)", "see the chart, then `x`"),
    ],
)
def test_the_site_names_what_is_outside_of_it_and_links_the_rest(text, shown):
    assert without_outer_links(text, DOCS / "cdi.md", DOCS) == (text if shown is None else shown)


def test_a_link_out_of_the_site_to_nothing_fails_the_build():
    with pytest.raises(FileNotFoundError, match=r"nothing\.md"):
        without_outer_links("[x](../nothing.md)", DOCS / "cdi.md", DOCS)
