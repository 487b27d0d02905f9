"""``hami-plugin explain``: which device a name means, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from hami_plugin.cli.explain import MAX_NAMED, explain_device, find_device
from hami_plugin.errors import HamiError


def device(**changes: Any) -> dict[str, Any]:
    return {
        "vendor": "nvidia",
        "number": "0",
        "uuid": "GPU-aaaa-0",
        "model": "M",
        "health": "healthy",
        "offered": True,
        "reason": "",
        "message": "",
        "outlook": "",
        "holders": [],
        "others": [],
        "fault": None,
        **changes,
    }


TWO = [device(), device(number="1", uuid="GPU-bbbb-1"), device(vendor="amd", uuid="AMD-0")]


@pytest.mark.parametrize(
    ("name", "uuid"),
    [("1", "GPU-bbbb-1"), ("gpu-b", "GPU-bbbb-1"), ("GPU-aaaa-0", "GPU-aaaa-0"), ("amd/0", "AMD-0")],
)
def test_a_device_is_known_by_number_vendor_uuid_or_its_beginning(name: str, uuid: str) -> None:
    assert find_device(TWO, name)["uuid"] == uuid


@pytest.mark.parametrize(("name", "words"), [("0", "means 2"), ("GPU-", "means 2"), ("9", "no device"), ("", "no dev")])
def test_a_name_of_none_or_several_says_which_there_are(name: str, words: str) -> None:
    with pytest.raises(HamiError, match=words) as error:
        find_device(TWO, name)

    assert "nvidia/0" in str(error.value)


def test_a_device_without_a_fault_is_three_lines() -> None:
    assert list(explain_device(device())) == ["nvidia/0 M (GPU-aaaa-0)", "  health:  healthy", "  held by: nobody"]


def test_many_names_are_cut() -> None:
    text = "\n".join(explain_device(device(holders=[f"p{number}" for number in range(MAX_NAMED + 3)])))

    assert text.endswith("and 3 more")
