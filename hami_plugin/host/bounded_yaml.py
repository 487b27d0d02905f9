"""The YAML reader for untrusted files: depth and size are bounded while it reads, and duplicate keys are refused.

PyYAML's own composers recurse for each level, the one in C without a limit: a few kilobytes of ``[`` crash the
process. These loaders read the parser's events one by one, and stop at a bound.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml._yaml import CParser
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

MAX_LEVELS = 50
"""A CDI spec has six levels, a configuration eight, a pod about a dozen."""
MAX_NODES = 200_000
"""Keys and values. Those behind an alias count at each place that uses the alias."""
MAX_SCALAR_LENGTH = 256
"""Characters of a value other than text. PyYAML needs quadratic time for long numbers in base 60."""

_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"


class TooDeepError(ValueError):
    """The document has too many levels, or contains itself."""

    def __init__(self) -> None:
        super().__init__(f"is nested more than {MAX_LEVELS} levels deep, or contains itself")


class TooLargeError(ValueError):
    """The document has too many keys and values."""

    def __init__(self, most: int) -> None:
        super().__init__(f"has more than {most} keys and values, aliases included")


class DuplicateKeyError(ValueError):
    """A mapping has a duplicate key. Lines count from 1."""

    def __init__(self, key: str, line: int, first_line: int) -> None:
        super().__init__(f'"{key}" is set twice in one mapping, on lines {first_line} and {line}')
        self.key, self.line, self.first_line = key, line, first_line


class _Bounds(Composer):
    """Composes nodes as PyYAML does. Raises ``ValueError`` at a bound and at a duplicate key."""

    most_nodes = MAX_NODES
    _level = 0
    _nodes = 0

    def compose_document(self) -> yaml.Node | None:
        self._sizes: dict[int, int] = {}
        self._nodes = 0
        return super().compose_document()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._level >= MAX_LEVELS:
            raise TooDeepError
        before, known = self._nodes, bool(self.check_event(yaml.AliasEvent))  # type: ignore[attr-defined]  # the parser has it
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        if known and id(node) not in self._sizes:
            raise TooDeepError
        self._nodes += self._sizes[id(node)] if known else 1
        self._sizes[id(node)] = self._nodes - before
        if self._nodes > self.most_nodes:
            raise TooLargeError(self.most_nodes)
        if isinstance(node, yaml.ScalarNode) and node.tag != _TEXT and len(node.value) > MAX_SCALAR_LENGTH:
            kind = node.tag.rpartition(":")[2]
            raise ValueError(f"a value ({kind}) has {len(node.value)} characters; {MAX_SCALAR_LENGTH} are enough")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in lines:
                    raise DuplicateKeyError(key.value, line, lines[name])
                lines[name] = line
        return node


class BoundedLoader(_Bounds, yaml.SafeLoader):
    """For files that people write: slower, with better messages."""


class FastLoader(_Bounds, CParser, SafeConstructor, Resolver):
    """For files that programs write: libyaml parses them."""

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)


def read_yaml(text: str) -> object:
    """One document as plain values, by the fast parser. Raises ``yaml.YAMLError`` or ``ValueError``."""
    loader = FastLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
