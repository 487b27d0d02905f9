"""YAML that anybody may have written: its depth and its size are bounded while it is read, not afterwards.

PyYAML's own composers call themselves for each level, and the one in C does so without a limit: a few kilobytes of
``[`` end the process. These loaders take the parser's events one by one, and stop at a bound.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml._yaml import CParser
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

MAX_LEVELS = 50
"""A CDI spec has six, and a configuration eight; a pod has about a dozen."""
MAX_NODES = 200_000
"""Keys and values, those behind an alias counted at each place that it stands at."""
LONGEST_VALUE = 256
"""Characters of a value that is no text. PyYAML takes time in the square of a number's length, in base 60 at least."""

_TEXT = "tag:yaml.org,2002:str"


class TooDeepError(ValueError):
    """A document with more levels than any that makes sense, or one that contains itself."""

    def __init__(self) -> None:
        super().__init__(f"is nested more than {MAX_LEVELS} levels deep, or contains itself")


class TooLargeError(ValueError):
    """A document with more keys and values than any that makes sense."""

    def __init__(self, most: int) -> None:
        super().__init__(f"has more than {most} keys and values, aliases included")


class _Bounds(Composer):
    """Composes nodes as PyYAML does, and raises ``ValueError`` at a bound."""

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
        if isinstance(node, yaml.ScalarNode) and node.tag != _TEXT and len(node.value) > LONGEST_VALUE:
            kind = node.tag.rpartition(":")[2]
            raise ValueError(f"a value ({kind}) has {len(node.value)} characters; {LONGEST_VALUE} are enough")
        return node


class BoundedLoader(_Bounds, yaml.SafeLoader):
    """For files of people: slower, with messages that help them."""


class FastLoader(_Bounds, CParser, SafeConstructor, Resolver):
    """For files of programs: the events are libyaml's."""

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)


def read_yaml(text: str) -> object:
    """A document as plain values, by the fast parser. ``yaml.YAMLError`` or ``ValueError`` says what is wrong."""
    loader = FastLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _require_once(root)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _require_once(root: yaml.Node) -> None:
    """``ValueError`` where a mapping has a key twice. Nodes that aliases lead to again are looked at once."""
    waiting, seen = [root], {id(root)}
    while waiting:
        node = waiting.pop()
        below = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            keys: set[tuple[str, str]] = set()
            for key, _value in node.value:
                name = (key.tag, str(key.value))
                if name in keys and isinstance(key, yaml.ScalarNode):
                    raise ValueError(f'"{key.value}" is there twice in one mapping, on line {key.start_mark.line + 1}')
                keys.add(name)
            below = [one for pair in node.value for one in pair]
        waiting += [one for one in below if id(one) not in seen]
        seen |= {id(one) for one in below}
