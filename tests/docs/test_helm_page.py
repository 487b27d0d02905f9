"""The page of the chart against its values."""

import json
import re
from pathlib import Path

import kubernetes_validate
import yaml

from tests.support.pages import generated

ROOT = Path(__file__).parents[2]
VALUES = (ROOT / "charts/hami-plugin/values.yaml").read_text(encoding="utf-8")
KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]+):")


def described():
    """The path of each key that has a comment above it, with the comment."""
    path, words = [], []
    for line in VALUES.splitlines():
        if comment := re.match(r"^ *# (.*)$", line):
            words.append(comment[1])
        elif key := KEY.match(line):
            path = [*path[: len(key["indent"]) // 2], key["key"]]
            if words:
                yield tuple(path), " ".join(words)
            words = []
        else:
            words = []


def value(path):
    found = yaml.load(VALUES, yaml.CSafeLoader)
    for key in path:
        found = found[key]
    return found


def leaves(values, path=()):
    for key, each in values.items():
        if isinstance(each, dict) and each:
            yield from leaves(each, (*path, key))
        else:
            yield (*path, key)


def test_the_table_of_values_is_the_files_own():
    rows = []
    for path, words in described():
        default = value(path)
        shown = (
            "" if isinstance(default, dict) and any((*path, key) in dict(described()) for key in default) else default
        )
        cell = f"`{json.dumps(shown)}`" if shown != "" or default == "" else ""
        rows.append(f"| `{'.'.join(path)}` | {cell} | {words} |\n")
    wanted = "".join(["\n| value | default | |\n|---|---|---|\n", *rows, "\n"])

    assert generated("docs/reference/chart-values.md", "values", wanted) == wanted, (
        "write it anew: UPDATE_DOCS=1 make test"
    )


def test_every_value_has_a_description_of_its_own_or_of_what_it_is_part_of():
    known = dict(described())
    bare = [
        path for path in leaves(yaml.safe_load(VALUES)) if not any(path[:n] in known for n in range(1, len(path) + 1))
    ]

    assert bare == []


def test_the_example_is_a_pod():
    pod = yaml.safe_load((ROOT / "docs/examples/pod.yaml").read_text(encoding="utf-8"))

    kubernetes_validate.validate(pod, "1.31", strict=True)
    assert "nvidia.com/gpu" in pod["spec"]["containers"][0]["resources"]["limits"]
