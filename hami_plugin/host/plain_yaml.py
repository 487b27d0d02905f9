"""YAML as container runtimes read it: a key that is there twice in one mapping is an error, and not the last one's."""

from __future__ import annotations

import yaml

from hami_plugin.bounded_yaml import FastLoader


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
