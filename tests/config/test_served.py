"""How a vendor's settings name the ways by which containers receive devices."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from hami_plugin.config.vendors import ServedSettings
from hami_plugin.model.delivery import Way


class Narrow(ServedSettings):
    """A vendor whose devices only a CDI annotation can hand over."""

    plain: ClassVar[Way] = Way.CDI_ANNOTATIONS
    served_ways: ClassVar[frozenset[Way]] = frozenset({Way.CDI_ANNOTATIONS})


def served(**keys: Any) -> ServedSettings:
    return ServedSettings.model_validate(keys)


def test_unless_something_is_said_the_node_decides_and_the_plain_way_is_what_remains() -> None:
    assert served().automatic
    assert served().delivery.ways == (Way.DEVICE_SPECS,)


@pytest.mark.parametrize(
    "value", ["cdi-cri, device-specs", ["cdi-cri", "device-specs"], "cdi-cri,device-specs,cdi-cri"]
)
def test_ways_are_named_in_a_list_or_with_commas_and_each_counts_once(value: Any) -> None:
    settings = served(deviceListStrategy=value)

    assert settings.delivery.ways == (Way.CDI_CRI, Way.DEVICE_SPECS)
    assert not settings.automatic


def test_the_seeds_section_names_the_kind_and_switches_cdi_on() -> None:
    """Its form: ``cdi: {enabled, vendor, class}``."""
    settings = served(cdi={"enabled": True, "vendor": "hami.io", "class": "npu"})

    assert not settings.automatic
    assert settings.delivery.ways == (Way.CDI_ANNOTATIONS,)
    assert settings.delivery.name("0") == "hami.io/npu=0"


def test_cdi_enabled_adds_to_plain_ways_and_leaves_a_cdi_way_as_it_is() -> None:
    both = served(deviceListStrategy="device-specs", cdi={"enabled": True})
    field = served(deviceListStrategy="cdi-cri", cdi={"enabled": True})

    assert both.delivery.ways == (Way.DEVICE_SPECS, Way.CDI_ANNOTATIONS)
    assert field.delivery.ways == (Way.CDI_CRI,)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"deviceListStrategy": "cdi"}, "cdi"),
        ({"deviceListStrategy": "auto,cdi-cri"}, "'auto' cannot be combined with others"),
        ({"deviceListStrategy": []}, "at least 1 item"),
        ({"deviceListStrategy": "envvar"}, "'envvar' is not supported by this vendor; choose from: cdi-annotations"),
        ({"cdi": {"vendor": "No_Vendor"}}, "vendor"),
        ({"cdi": {"class": "0gpu"}}, "class"),
        ({"cdi": {"annotationPrefix": "cdi.k8s.io"}}, "annotationPrefix"),
        ({"cdi": {"enable": True}}, "enable"),
    ],
)
def test_what_means_nothing_is_refused_with_its_place(keys: Any, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        served(**keys)

    assert said in str(refused.value)


def test_a_vendor_says_what_it_can_do() -> None:
    assert Narrow().delivery.ways == (Way.CDI_ANNOTATIONS,)
    with pytest.raises(ValidationError, match="'device-specs' is not supported by this vendor; choose from"):
        Narrow.model_validate({"deviceListStrategy": "device-specs"})
