from __future__ import annotations

import pickle
from typing import ClassVar

import pytest

from hami_plugin.config.explain import field_at, model_at, nearest, suggestion, takes_list
from hami_plugin.config.settings import Settings
from hami_plugin.config.vendors import ServedSettings, VendorSettings
from tests.support.settings_reference import reference, schema


def rows(table: str) -> dict[str, list[str]]:
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_the_table_tells_key_type_default_and_description(acme: type[VendorSettings]) -> None:
    table = reference({"The daemon": Settings, "acme": acme})

    assert table.startswith("### The daemon\n\n| key | type | default | description |\n|---|---|---|---|\n")
    assert "\n\n### acme\n\n" in table
    found = rows(table)
    assert found["nodeName"] == ["text", "required", "This node's name in Kubernetes. Environment: `NODE_NAME`."]
    assert found["podResourcesSocket"][:2] == ["path", "follows from other keys"]
    assert found["registerFormat"][:2] == ["`json` or `legacy`", '`"json"`']
    assert found["health.suspectLooks"][:2] == ["whole number, at least 1, at most 100", "`2`"]
    assert found["rescanSeconds"][:2] == ["number, above 0, at most 86400", "`30.0`"]
    assert found["deviceSplitCount"] == ["whole number, at least 1, at most 1000", "`10`", "Sharers of a card."]
    assert found["driverRoot"][:2] == ["path", "none"]
    assert found["filterDevices.index"] == [
        "list of whole number, at least 0",
        "`[]`",
        "Environment: `ACME_SKIP_INDEX`.",
    ]
    assert found["profiles"][:2] == ["list of section", "`[]`"]
    assert found["enabled"][:2] == ["`true` or `false` or `auto`", '`"auto"`']


def test_every_key_of_the_daemon_is_described() -> None:
    for key, cells in rows(reference({"The daemon": Settings})).items():
        assert len(cells) == 3, key
        assert cells[2].endswith("."), key


def test_the_schema_describes_the_file_with_its_vendors(acme: type[VendorSettings]) -> None:
    described = schema({"acme": acme})

    vendors = described["properties"]["vendors"]
    assert described["additionalProperties"] is False
    assert "required" not in described
    assert vendors["additionalProperties"] is False
    assert vendors["properties"]["acme"] == {"$ref": "#/$defs/AcmeSettings"}
    assert described["$defs"]["AcmeSettings"]["properties"]["deviceSplitCount"]["maximum"] == 1000
    assert "Settings" not in described["$defs"]


def test_the_schema_is_complete(acme: type[VendorSettings]) -> None:
    def references(value: object) -> set[str]:
        match value:
            case dict():
                own = {value["$ref"]} if "$ref" in value else set()
                return own.union(*(references(item) for item in value.values()))
            case list():
                return set().union(*(references(item) for item in value))
            case _:
                return set()

    described = schema({"acme": acme})

    assert references(described) == {f"#/$defs/{name}" for name in described["$defs"]}


def test_a_misspelt_word_finds_the_nearest_key() -> None:
    assert nearest("device_split_count", ["deviceSplitCount", "nodeName"]) == "deviceSplitCount"
    assert nearest("NODENAME", ["deviceSplitCount", "nodeName"]) == "nodeName"
    assert nearest("zebra", ["deviceSplitCount", "nodeName"]) == ""
    assert suggestion("zebra", ["b", "a"]) == "known keys: a, b"
    assert suggestion("zebra", []) == "nothing can be set here"


def test_fields_are_found_through_sections_and_lists(acme: type[VendorSettings]) -> None:
    index = field_at(acme, ("filterDevices", "index"))
    models = field_at(acme, ("profiles", 3, "models"))
    holder = model_at(acme, ("profiles", 0))

    assert index is not None
    assert takes_list(index)
    assert models is not None
    assert models.is_required()
    assert field_at(acme, ("driverRoot", "x")) is None
    assert field_at(acme, ("nothing",)) is None
    assert holder is not None
    assert set(holder.model_fields) == {"models", "names"}
    assert model_at(acme, ()) is acme


class NamedSettings(ServedSettings):
    """A vendor that names its CDI class, and nothing else."""

    cdi_class: ClassVar[str] = "acme-card"


class InheritingSettings(NamedSettings):
    """A vendor's settings in two classes."""

    hami_section: ClassVar[str] = "acmes"


@pytest.mark.parametrize("model", [NamedSettings, InheritingSettings])
def test_a_vendor_names_its_cdi_class_and_a_file_may_name_another(model: type[NamedSettings]) -> None:
    assert model.model_validate({"cdi": {"enabled": True}}).delivery.kind == "hami.io/acme-card"
    assert model.model_validate({"cdi": {"class": "card"}}).delivery.kind == "hami.io/card"
    assert '| `cdi.class` | text | `"acme-card"` | Class part' in reference({"acme": model})
    assert ServedSettings().delivery.kind == "hami.io/gpu"


@pytest.mark.parametrize("model", [NamedSettings, InheritingSettings])
def test_settings_with_a_cdi_class_of_their_own_reach_a_driver_in_another_process(model: type[NamedSettings]) -> None:
    settings = model.model_validate({"cdi": {"annotationPrefix": "acme.example/"}})

    assert pickle.loads(pickle.dumps(settings)) == settings
