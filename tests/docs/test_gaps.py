"""The table of gaps against the program: whatever it says is not served has a row, and each row's words are said."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("cdi", "hami_plugin", "vendors")
NOT_THE_PROGRAM = ("_pb2.py", "_pb2_grpc.py", "vendors/nvidia/simulation")

SOUNDS_LIKE_A_GAP = re.compile(
    r"support|not (yet|built|implemented|enforced|cut\b|limited|served|offered)|serves? yet|"
    r"\bonly\b.{0,60}\b(is|are|cuts?|limits?|serves?|served)\b|the only one|never (served|limited)|"
    r"does not (serve|limit|share|cut)|serves? (no\b|neither)|no node side|limits? (no|nothing)|"
    r"\bnothing\b.{0,30}\b(limits?|holds?|enforces?)|holds? (a container|nobody|no one)|no sMLU|"
    r"cannot be (used whole|shared|cut|limited|served|simulated|set|had)|none is free|registered as such|"
    r"whole [a-zA-Z]+ goes to one|"
    r"whole (devices|cards|ones|MLUs|NPUs|GPUs) only|unlimitedShares:|exactly the (memory|cores)|"
    r"no effect|cut (with|beforehand)|ha(s|ve) been cut|as many containers as|that their owner|has its GPU alone",
    re.IGNORECASE,
)

NO_GAPS = {
    " and has no effect": "a slip of the pen",
    "…: ….…: is not a known key and has no effect; …": "a slip of the pen",
    "…: is not a vendor here and has no effect; did you mean …?": "a slip of the pen",
    "environment: …: has no effect, in HAMi neither; set … in the device configuration": "nor in HAMi",
    "Example: kubectl exec -n hami-system POD -- hami-plugin support-bundle --output - > bundle.tar.gz": "a name",
    "whole devices only: …": "followed by the vendor's words",
    "the node serves whole devices only, and a share is requested": "beside the node's own words",
    " and nothing limits containers to them": "of the demonstration",
    "nothing on this node limits the container to its share: it receives the same as one with the whole device": (
        "of the demonstration"
    ),
    "these devices are given out whole, as nothing holds containers to parts of them": "of the demonstration",
    "parts are not limited": "followed by the vendor's words",
    "not served": "followed by what a vendor has done wrong",
    "the card is in MIG mode, where it cannot be used whole; set migStrategy to mixed or single to serve its "
    "instances, switch MIG off with nvidia-smi -mig 0, or leave the card out with filterDevices": "a setting mends it",
    "own socket not served": "a fault that is being mended",
    "not offered: …": "a device that is not well",
    "… not offered": "a device that is not well",
    "not offered at present": "a device that is not well",
    "device … is not offered as …": "a device that the kubelet should not ask for",
    "compute mode allows one process, so the card cannot be shared; …, or set deviceSplitCount to 1": "to be set",
    "NPUs cannot be shared by HAMi's core without …; install it there": "to be installed",
    "the driver cannot tell this card's memory (a unified-memory part?), so it is not offered; "
    "set preConfiguredDeviceMemory to its MiB": "a setting mends it",
    "MiB of a card whose driver cannot tell, as of unified-memory parts. 0: it is not offered.": "that setting",
    "kernels that are not built for this card cannot be compiled": "a file of the driver's",
    "pod has node assigned: only the scheduler knows which devices of it are free": "as HAMi",
    "machine profile … cannot be simulated: …": "a damaged profile",
    "field label not supported: …": "the simulated API server",
    "requested API version … is not supported by kubelet, which supports …": "the simulated kubelet",
}
"""What sounds like a gap and is none, word for word, each with the reason."""


def rows() -> list[list[str]]:
    text = (ROOT / "docs/gaps.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| G-.*\|$", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def messages() -> list[str]:
    return [said for row in rows() for said in re.findall(r"`([^`]+)`", row[-1]) if not row[-1].startswith("none")]


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not any(part in path.as_posix() for part in NOT_THE_PROGRAM):
                yield path


def literals(tree: ast.AST) -> Iterator[str]:
    """What the program can say: texts with ``…`` for what is filled in, without docstrings."""
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside.add(node.value)
        if isinstance(node, ast.JoinedStr):
            inside.update(node.values)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.value


@pytest.fixture(scope="module")
def said() -> list[tuple[str, str]]:
    """Everything that the program can say, with its file."""
    return [
        (path.relative_to(ROOT).as_posix(), text)
        for path in sources()
        for text in literals(ast.parse(path.read_text(encoding="utf-8")))
    ]


def unlisted(texts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    known = messages()
    sounding = [(file, text) for file, text in texts if " " in text and SOUNDS_LIKE_A_GAP.search(text)]
    return [(file, text) for file, text in sounding if text not in NO_GAPS and not any(one in text for one in known)]


def test_whatever_the_program_says_is_not_served_has_a_row(said: list[tuple[str, str]]) -> None:
    assert unlisted(said) == []


@pytest.mark.parametrize(
    "text",
    [
        "operating mode 'tiles' is not supported",
        "parts of Acme cards are not served yet",
        "only whole cards are served",
        "nothing here limits a container on Acme cards",
        "Acme cards cannot be shared",
    ],
)
def test_a_new_message_without_a_row_is_noticed(text: str) -> None:
    tree = ast.parse(f'def f(name):\n    raise HamiError("{text}", hint=f"{{name}}: leave it out")\n')

    assert unlisted([("vendors/acme.py", one) for one in literals(tree)]) == [("vendors/acme.py", text)]


def test_what_a_row_quotes_is_said(said: list[tuple[str, str]]) -> None:
    texts = [text for _, text in said]

    assert [one for one in messages() if not any(one in text for text in texts)] == []


def test_what_is_excused_is_said_too(said: list[tuple[str, str]]) -> None:
    assert set(NO_GAPS) - {text for _, text in said if SOUNDS_LIKE_A_GAP.search(text)} == set()


def test_every_row_is_whole_and_has_an_id_of_its_own() -> None:
    ids = [row[0] for row in rows()]

    assert len(ids) == len(set(ids)) > 20
    for row in rows():
        assert len(row) == 5, row
        assert all(row), row
        assert row[-1].startswith(("`", "none")), row


def test_the_differences_are_choices() -> None:
    """What is not built stands among the gaps, which the README and the differences name."""
    differences = (ROOT / "docs/differences.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| D-.*(?:not built|not yet|not implemented|unlimitedShares).*$", differences, re.MULTILINE)

    assert found == []
    assert "[gaps.md](gaps.md)" in differences
    assert "[docs/gaps.md](docs/gaps.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
