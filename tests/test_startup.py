"""Vendors that are only scheduled do not disturb the daemon, and say so when somebody asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hami_plugin.config.load import Configuration
from hami_plugin.config.settings import Settings
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostPaths
from hami_plugin.startup import Plan, opened
from hami_plugin.vendor import load_vendor


def plan(vendors: Mapping[str, Mapping[str, Any]]) -> Plan:
    sections = {name: load_vendor(name).settings.model_validate(section) for name, section in vendors.items()}
    settings = Settings.model_validate({"nodeName": "n"})
    return Plan(configuration=Configuration(settings=settings, vendors=sections), simulated=None)


def test_a_vendor_without_a_node_side_is_passed_over() -> None:
    assert opened(plan({"hygon": {"resourceCountName": "corp.example/dcu"}}), HostPaths()) == ()


def test_a_vendor_without_a_node_side_cannot_be_switched_on() -> None:
    with pytest.raises(HamiError, match=r"vendors\.hygon\.enabled: true, but Hygon DCUs are only scheduled here"):
        opened(plan({"hygon": {"enabled": True}}), HostPaths())


def test_what_has_no_node_side_says_so_when_it_is_asked() -> None:
    (family,) = load_vendor("hygon").families(load_vendor("hygon").settings())

    with pytest.raises(HamiError, match="served by the vendor's own device plugin"):
        family.inject(None, None)  # type: ignore[arg-type]  # never gets that far
