"""A hook of MkDocs: links to files outside ``docs`` become plain text, because the site has no such pages.

In the repository such a link leads to a file. A link to a missing file fails the build, like any other.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]\n]*)\]\(((?![a-z]+:|#)[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001  # MkDocs' own names
    """MkDocs calls this for each page before it makes HTML of it."""
    return without_outer_links(markdown, Path(page.file.abs_src_path), Path(config.docs_dir))


def without_outer_links(markdown: str, page: Path, docs: Path) -> str:
    """The text without links to files outside ``docs``. ``FileNotFoundError`` if such a file does not exist."""

    def named(link: re.Match[str]) -> str:
        target = (page.parent / link[2].partition("#")[0]).resolve()
        if target.is_relative_to(docs.resolve()):
            return link[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.name} links to {link[2]}, and there is no such file")
        return link[1]

    return LINK.sub(named, markdown)
