"""How our answers about MLUs are compared with HAMi's, and where they differ on purpose."""

from __future__ import annotations

from tests.hami.parity import Json, Parity, differences
from vendors.cambricon.rules import DEVICE_TYPE, WAITING


def parity() -> Parity:
    """Cambricon's part in the comparison."""
    return Parity(differences=differences({"D-160": (_written, _waits_by_both_names, (f"annotations.{WAITING[1]}",))}))


def _written(question: Json) -> bool:
    return bool(question["fn"] == "patch_annotations" and question["vendor"] == DEVICE_TYPE)


def _waits_by_both_names(_question: Json, ours: Json, theirs: Json) -> bool:
    """The same annotations, and the agent's spelling says what HAMi's says."""
    written = dict(theirs["annotations"])
    return bool(ours["annotations"] == {**written, WAITING[1]: written.get(WAITING[0], "")})
