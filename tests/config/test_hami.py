"""HAMi's two files: what its chart writes, what its users write, and what must not pass in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hami_plugin.config.load import load
from hami_plugin.config.vendors import VendorSettings

CHART_ENTRY = {
    "name": "your-node-name",
    "operatingmode": "shared",
    "devicememoryscaling": 1,
    "devicesplitcount": 10,
    "preconfigureddevicememory": 0,
    "enablenumatopology": False,
    "migstrategy": "none",
    "filterdevices": {"uuid": [], "index": []},
    "enablegetpreferredallocation": False,
}


def entries(*items: object) -> str:
    return json.dumps({"nodeconfig": list(items)})


def test_the_section_of_each_vendor_is_read_and_the_rest_is_hamis_business(loading) -> None:
    device = """
acme:
  resourceCountName: acme.example/slice
  deviceSplitCount: 4
iluvatars:
- chipName: X1
vnpus: {configs: []}
other: 3
"""

    configuration = loading(device=device)

    assert configuration.vendors["acme"].count_name == "acme.example/slice"
    assert configuration.vendors["acme"].split == 4
    assert configuration.warnings == ()


def test_keys_without_a_value_mean_the_default(loading) -> None:
    configuration = loading(device="acme:\n  deviceSplitCount:\n  filterDevices: {uuid: null}\nzeta:\n")

    assert configuration.vendors["acme"].split == 10
    assert configuration.vendors["acme"].filters.uuid == ()
    assert configuration.warnings == ()


def test_an_unknown_key_of_a_known_vendor_is_a_warning_with_the_nearest_key(loading) -> None:
    device = "acme:\n  deviceSplitCuont: 4\n  profiles:\n  - {models: [a], speed: 1}\n"

    configuration = loading(device=device)

    assert configuration.vendors["acme"].split == 10
    assert configuration.vendors["acme"].profiles[0].models == ("a",)
    assert sorted(configuration.warnings) == [
        (
            f"{loading.device}:2: acme.deviceSplitCuont: is not a known key and has no effect; "
            "did you mean deviceSplitCount?"
        ),
        f"{loading.device}:4: acme.profiles[0].speed: is not a known key and has no effect; known keys: models, names",
    ]


def test_a_misspelt_vendor_and_hamis_second_reading_are_warned_of(loading) -> None:
    configuration = loading(device="acmee:\n  deviceSplitCount: 4\nsharing:\n  timeSlicing: {}\nunrelated: 1\n")

    assert configuration.warnings == (
        f"{loading.device}:1: acmee: is not a vendor here and has no effect; did you mean acme?",
        (
            f"{loading.device}:3: sharing: is read only by HAMi's own plugin and has no effect here; "
            "use the vendor's section"
        ),
    )


def test_a_wrong_value_is_an_error_in_the_words_of_hamis_file(loading) -> None:
    assert loading.problems(device="zeta:\n  enabled: true\nacme:\n  deviceSplitCount: 0\n") == (
        f"{loading.device}:4: acme.deviceSplitCount: 0: must be at least 1; the default is 10",
    )


def test_a_section_that_is_no_mapping_is_an_error(loading) -> None:
    assert loading.problems(device="acme: []\n") == (
        f"{loading.device}:1: acme: must be a section of keys, not list; write `key: value`, one for each line",
    )


def test_the_entry_of_this_node_overrides_with_zero_false_and_empty(loading) -> None:
    device = (
        "acme: {deviceSplitCount: 4, deviceMemoryScaling: 2, enableNumaTopology: true, filterDevices: {uuid: [a, b]}}"
    )
    node = entries(
        {"name": "n2", "devicesplitcount": 99},
        {
            "name": "n1",
            "devicesplitcount": 1,
            "devicememoryscaling": 0,
            "enablenumatopology": False,
            "filterdevices": {"uuid": [], "index": [3]},
        },
    )

    acme = loading(device=device, node=node).vendors["acme"]

    assert (acme.split, acme.scaling, acme.numa) == (1, 0.0, False)
    assert (acme.filters.uuid, acme.filters.index) == ((), (3,))


def test_of_several_entries_for_one_node_a_later_one_wins(loading) -> None:
    node = entries(
        {"name": "n1", "devicesplitcount": 2, "operatingmode": "sliced"}, {"name": "n1", "devicesplitcount": 3}
    )

    acme = loading(node=node).vendors["acme"]

    assert (acme.split, acme.operating_mode) == (3, "sliced")


def test_keys_match_whatever_their_case(loading) -> None:
    node = '{"NodeConfig": [{"Name": "n1", "deviceSplitCount": 7, "filterDevices": {"UUID": ["x"]}}]}'

    acme = loading(node=node).vendors["acme"]

    assert acme.split == 7
    assert acme.filters.uuid == ("x",)


def test_the_charts_sample_is_taken_without_a_word(loading) -> None:
    configuration = loading(node=entries(CHART_ENTRY))

    assert configuration.warnings == ()
    assert configuration.sources == (str(loading.node),)


def test_the_charts_sample_for_this_node_only_mentions_what_no_vendor_maps(loading) -> None:
    configuration = loading(node=entries({**CHART_ENTRY, "name": "n1"}))

    (warning,) = configuration.warnings
    assert warning.startswith(f"{loading.node}: nodeconfig[0].preconfigureddevicememory: is not a known key")


def test_the_node_name_of_our_file_and_of_a_flag_selects_the_entry(loading) -> None:
    node = entries({"name": "a", "devicesplitcount": 2}, {"name": "b", "devicesplitcount": 3})

    assert loading("nodeName: a\n", node=node, environment={}).vendors["acme"].split == 2
    assert loading("nodeName: a\n", node=node, overrides={"nodeName": "b"}).vendors["acme"].split == 3


def test_an_entry_that_nearly_names_this_node_is_warned_of(loading) -> None:
    node = entries({"name": "N1.example.com", "devicesplitcount": 2}, {"devicesplitcount": 3}, {"name": "n22"})

    configuration = loading(node=node)

    assert configuration.vendors["acme"].split == 10
    assert configuration.warnings == (
        f"{loading.node}: nodeconfig[0].name: 'N1.example.com' is not the name of this node, 'n1'; use the full name",
        f'{loading.node}: nodeconfig[1]: has no "name" and applies to no node; add the node\'s name',
    )


def test_a_wrong_value_in_an_entry_is_an_error_in_the_words_of_that_file(loading) -> None:
    node = entries({"name": "n1", "DeviceSplitCount": -1, "filterdevices": {"index": ["x"]}})

    assert loading.problems(node=node) == (
        f"{loading.node}: nodeconfig[0].DeviceSplitCount: -1: must be at least 1; the default is 10",
        f'{loading.node}: nodeconfig[0].filterdevices.index[0]: "x": must be a whole number; the default is []',
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", 'FILE: has no list "nodeconfig"; write {"nodeconfig": [{"name": "…"}]}'),
        ('{"nodeconfig": 3}', 'FILE: has no list "nodeconfig"; write {"nodeconfig": [{"name": "…"}]}'),
        ('{"nodeconfig": [3]}', "FILE: nodeconfig[0]: must be an object of keys"),
        ("[]", "FILE: must hold keys at the top, not list; write `key: value`, one for each line"),
        ("{", "FILE:1:2: is not JSON: "),
    ],
)
def test_a_node_file_that_is_no_node_file_stops_the_start(loading, text: str, expected: str) -> None:
    (problem,) = loading.problems(node=text)

    assert problem.replace(str(loading.node), "FILE").startswith(expected)


def test_a_node_file_that_does_not_exist_is_a_warning(tmp_path: Path, acme: type[VendorSettings]) -> None:
    configuration = load(
        config=None,
        device_config=None,
        node_config=tmp_path / "config.json",
        overrides={},
        environment={"NODE_NAME": "n1"},
        vendor_settings=lambda _: acme,
        vendor_names=("acme",),
    )

    assert configuration.warnings == (f"{tmp_path}/config.json: does not exist; mount it, or leave the option out",)
    assert configuration.sources == ()
    assert configuration.vendors["acme"].operating_mode == "shared"
