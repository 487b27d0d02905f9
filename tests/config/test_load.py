from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_plugin.config.load import Configuration, in_order, load
from hami_plugin.config.vendors import VendorSettings
from hami_plugin.errors import ConfigError


def test_without_any_file_everything_has_its_default_and_every_vendor_is_on(loading) -> None:
    configuration = loading()

    assert configuration.settings.node_name == "n1"
    assert configuration.settings.pod_resources_socket == Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    assert set(configuration.vendors) == {"acme", "zeta"}
    assert configuration.sources == ()
    assert configuration.warnings == ()


def test_each_source_outranks_the_ones_below_it(loading) -> None:
    device = "acme: {listStrategy: [device], deviceSplitCount: 2, deviceMemoryScaling: 2, operatingMode: sliced}"
    node = '{"nodeconfig": [{"name": "n1", "devicesplitcount": 3, "devicememoryscaling": 3}]}'
    own = "vendors: {acme: {deviceMemoryScaling: 4, listStrategy: [file]}}\nhookPath: /file\nstateDir: /file\n"
    environment = {"NODE_NAME": "n1", "HOOK_PATH": "/env", "ACME_LISTS": "env"}
    overrides = {"hookPath": "/flag", "vendors": {"acme": {"listStrategy": ["flag"]}}}

    def acme(**sources: object) -> tuple[object, ...]:
        chosen = loading(sources.pop("own", None), **{"environment": {"NODE_NAME": "n1"}, **sources})
        section = chosen.vendors["acme"]
        return section.operating_mode, section.split, section.scaling, section.lists, str(chosen.settings.hook_path)

    everything = {"device": device}
    assert acme(**everything) == ("sliced", 2, 2.0, ("device",), "/usr/local")
    everything |= {"node": node}
    assert acme(**everything) == ("sliced", 3, 3.0, ("device",), "/usr/local")
    everything |= {"own": own}
    assert acme(**everything) == ("sliced", 3, 4.0, ("file",), "/file")
    everything |= {"environment": environment}
    assert acme(**everything) == ("sliced", 3, 4.0, ("env",), "/env")
    everything |= {"overrides": overrides}
    assert acme(**everything) == ("sliced", 3, 4.0, ("flag",), "/flag")


def test_the_files_that_were_read_are_named(loading) -> None:
    configuration = loading("{}", device="{}", node='{"nodeconfig": []}')

    assert configuration.sources == (str(loading.own), str(loading.device), str(loading.node))


def test_every_problem_of_every_source_is_told_at_once(loading) -> None:
    own = """
nodename: x
rescanSeconds: 0
registerFormat: jsonn
health:
  probeSeconds: abc
kubeletDir: relative
logLevel:
topologyScores: perhaps
stateDir: 3
vendors:
  acme:
    deviceSplitCuont: 3
    deviceSplitCount: 1.5
    operatingMode: slicedd
    filterDevices: {index: [a, -1], uuid: x}
    profiles: [{names: [x]}]
    enableNumaTopology: 7
  amd: {}
"""

    problems = loading.problems(
        own,
        environment={"HOOK_PATH": "usr"},
        overrides={"httpPort": 99999, "httpHost": "localhost", "decisionWaitSeconds": "soon"},
    )

    expected = [
        "configuration: nodeName: is missing; set NODE_NAME in the environment, or add nodeName to the file",
        (
            '/FILE:7: kubeletDir: "relative": must be an absolute path, beginning with /; '
            'the default is "/var/lib/kubelet/device-plugins"'
        ),
        '/FILE:10: stateDir: 3: must be a path; the default is "/var/lib/hami-plugin"',
        'environment: HOOK_PATH: "usr": must be an absolute path, beginning with /; the default is "/usr/local"',
        "/FILE:4: registerFormat: \"jsonn\": must be 'json' or 'legacy'; the default is \"json\"",
        'command line: decisionWaitSeconds: "soon": must be a number; the default is 2.0',
        "/FILE:3: rescanSeconds: 0: must be above 0.0; the default is 30.0",
        '/FILE:9: topologyScores: "perhaps": must be true or false; the default is true',
        'command line: httpHost: "localhost": must be an IP address, such as 0.0.0.0 or ::; the default is "0.0.0.0"',
        "command line: httpPort: 99999: must be at most 65535; the default is 9394",
        '/FILE:8: logLevel: has no value; set one, or delete the line; the default is "info"',
        '/FILE:6: health.probeSeconds: "abc": must be a number; the default is 5.0',
        "/FILE:2: nodename: is not a known key; did you mean nodeName?",
        "/FILE:19: vendors.amd: is not a known key; known keys: acme, zeta",
        "/FILE:14: vendors.acme.deviceSplitCount: 1.5: must be a whole number; the default is 10",
        "/FILE:18: vendors.acme.enableNumaTopology: 7: must be true or false; the default is false",
        "/FILE:15: vendors.acme.operatingMode: \"slicedd\": must be 'shared' or 'sliced'; the default is \"shared\"",
        '/FILE:16: vendors.acme.filterDevices.uuid: "x": must be a list; the default is []',
        '/FILE:16: vendors.acme.filterDevices.index[0]: "a": must be a whole number; the default is []',
        "/FILE:16: vendors.acme.filterDevices.index[1]: -1: must be at least 0; the default is []",
        "/FILE:17: vendors.acme.profiles[0].models: is missing; add models to the file",
        "/FILE:13: vendors.acme.deviceSplitCuont: is not a known key; did you mean deviceSplitCount?",
    ]
    assert [problem.replace(str(loading.own), "/FILE") for problem in problems] == list(in_order(expected))


def test_a_value_is_shown_short_and_without_control_characters(loading) -> None:
    long, forged = loading.problems(f'registerFormat: "{"x" * 500}"\nlogFormat: "a\\nlevel=info ok\\e[31m"\n')

    assert len(long) < 250
    assert '"xxx' in long
    assert "…" in long
    assert '"a\\nlevel=info ok\\u001b[31m"' in forged
    assert "\n" not in forged


def test_names_of_fields_are_not_keys(loading) -> None:
    assert loading.problems("node_name: n1\nvendors: {acme: {split: 3}}\n") == (
        f"{loading.own}:1: node_name: is not a known key; did you mean nodeName?",
        f"{loading.own}:2: vendors.acme.split: is not a known key; known keys: {ACME_KEYS}",
    )


ACME_KEYS = (
    "deviceMemoryScaling, deviceSplitCount, driverRoot, enableNumaTopology, enabled, filterDevices, listStrategy, "
    "operatingMode, passSpecs, profiles, resourceCountName"
)


def test_a_node_name_that_kubernetes_would_refuse_is_refused(loading) -> None:
    (problem,) = loading.problems(environment={"NODE_NAME": "Node_1"})

    assert problem.startswith('environment: NODE_NAME: "Node_1": must match ^[a-z0-9]')
    assert problem.endswith("; its purpose: This node's name in Kubernetes.")


def test_numbers_that_are_no_numbers_are_refused(loading) -> None:
    assert loading.problems("rescanSeconds: .nan\nvendors: {acme: {deviceMemoryScaling: .inf}}\n") == (
        f"{loading.own}:1: rescanSeconds: NaN: must be a finite number; the default is 30.0",
        f"{loading.own}:2: vendors.acme.deviceMemoryScaling: Infinity: must be a finite number; the default is 1.0",
    )


def test_text_that_yaml_takes_for_something_else_is_refused_with_the_way_out(loading) -> None:
    (problem,) = loading.problems("nodeName: 2024\n", environment={})

    assert problem.startswith(f"{loading.own}:1: nodeName: 2024: must be text; put it in quotes")


def test_a_vendor_can_be_turned_off_and_its_sections_shape_is_still_checked(loading) -> None:
    configuration = loading("vendors: {acme: {enabled: false}}\n")

    assert set(configuration.vendors) == {"zeta"}
    assert loading.problems("vendors: {acme: {enabled: false, deviceSplitCount: ten}}\n") == (
        f'{loading.own}:1: vendors.acme.deviceSplitCount: "ten": must be a whole number; the default is 10',
    )


def test_sections_with_nothing_in_them_are_sections(loading) -> None:
    assert set(loading("vendors:\n").vendors) == {"acme", "zeta"}
    assert set(loading("vendors:\n  acme:\n").vendors) == {"acme", "zeta"}


def test_sections_that_are_no_mapping_are_told_even_when_the_environment_would_hide_them(loading) -> None:
    environment = {"NODE_NAME": "n1", "ACME_LISTS": "x"}

    for text, path in (("vendors: 3\n", "vendors"), ("vendors: {acme: 3}\n", "vendors.acme")):
        (problem,) = loading.problems(text, environment=environment)
        assert problem == (
            f"{loading.own}:1: {path}: must be a section of keys, not int; write `key: value`, one for each line"
        )
    assert loading.problems("health: 3\n") == (
        f"{loading.own}:1: health: 3: must be a section of keys; its purpose: Health and recovery.",
    )


def test_a_file_that_cannot_be_parsed_hides_no_problem_of_the_others_and_invents_none(loading) -> None:
    problems = loading.problems("a: [", device="acme: {deviceSplitCount: 0}", environment={})

    assert len(problems) == 2
    assert problems[0].startswith(f"{loading.own}:1:5: is not YAML: ")
    assert problems[1].startswith(f"{loading.device}:1: acme.deviceSplitCount: 0: must be at least 1")


def test_named_files_must_exist(tmp_path: Path, acme: type[VendorSettings]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            config=tmp_path / "a.yaml",
            device_config=tmp_path / "b.yaml",
            node_config=None,
            overrides={},
            environment={},
            vendor_settings=lambda _: acme,
            vendor_names=("acme",),
        )

    assert caught.value.problems == (
        f"{tmp_path}/a.yaml: does not exist; mount it, or leave the option out",
        f"{tmp_path}/b.yaml: does not exist; mount it, or leave the option out",
    )


def test_a_vendor_that_cannot_be_loaded_is_one_problem_among_others(loading) -> None:
    problems = loading.problems("vendors: {ghost: {x: 1}}\nrescanSeconds: -1\n", names=("acme", "ghost"))

    assert problems == (
        f"{loading.own}:2: rescanSeconds: -1: must be above 0.0; the default is 30.0",
        "configuration: vendors.ghost: no vendor is named 'ghost'; choose from: acme, zeta",
    )


def test_environment_variables_fill_keys_of_settings_and_vendors(loading) -> None:
    configuration = loading(
        environment={
            "NODE_NAME": "n1",
            "KUBELET_SOCKET": "/var/snap/kubelet/device-plugins/kubelet.sock",
            "ENABLE_TOPOLOGY_SCORE": "false",
            "ACME_LISTS": "envvar, mounts ,",
            "ACME_ROOT": "/run/driver",
            "ACME_SPECS": "TRUE",
            "ACME_SKIP_INDEX": "1,2",
            "HOOK_PATH": "  ",
        }
    )

    acme = configuration.vendors["acme"]
    assert configuration.settings.kubelet_dir == Path("/var/snap/kubelet/device-plugins")
    assert configuration.settings.pod_resources_socket == Path("/var/snap/kubelet/pod-resources/kubelet.sock")
    assert configuration.settings.topology_scores is False
    assert configuration.settings.hook_path == Path("/usr/local")
    assert (acme.lists, acme.root, acme.specs) == (("envvar", "mounts"), Path("/run/driver"), True)
    assert acme.filters.index == (1, 2)


def test_a_wrong_variable_is_named_as_such(loading) -> None:
    environment = {"NODE_NAME": "n1", "ACME_SPECS": "maybe", "ACME_SKIP_INDEX": "1,x"}

    assert loading.problems(environment=environment) == (
        'environment: ACME_SKIP_INDEX[1]: "x": must be a whole number; the default is []',
        'environment: ACME_SPECS: "maybe": must be true or false; the default is false',
    )


def test_variables_that_hami_ignores_too_are_warned_of(loading) -> None:
    configuration = loading(environment={"NODE_NAME": "n1", "DEVICE_SPLIT_COUNT": "3", "DISABLE_CORE_LIMIT": ""})

    assert configuration.warnings == (
        (
            "environment: DEVICE_SPLIT_COUNT: has no effect, in HAMi neither; "
            "set deviceSplitCount in the device configuration"
        ),
    )


WRONG = """\
vendors:
  acme: {speed: 3, deviceMemoryScaling: -1, deviceSplitCount: 0}
  zeta: {speed: fast, foo: 1}
bogus: 1
nodeName: 7
logLevel: loud
health: {suspectLooks: x, nonsense: 1}
"""


@pytest.mark.scenario("H6")
def test_what_is_wrong_is_told_by_file_and_line_whatever_order_it_was_found_in(loading) -> None:
    device = "\n\nacme: {deviceSplitCount: x}"

    first = loading.problems(WRONG, device=device)

    places = [re.match(r"(/[^:]+):(\d+):", line).groups() for line in first]
    assert [(path, int(line)) for path, line in places] == sorted((path, int(line)) for path, line in places)
    assert len({line for _, line in places}) == 5
    assert first == loading.problems(WRONG, device=device)


def test_lines_are_in_order_of_file_and_line_and_none_is_told_twice() -> None:
    found = ["/b:10: x", "/b:9: y", "/a:2: z", "/b:9: y", "/a: no line", "environment: A: is odd", "configuration: b"]

    wanted = ("/a: no line", "/a:2: z", "/b:9: y", "/b:10: x", "configuration: b", "environment: A: is odd")
    for _ in range(5):
        random.shuffle(found)
        assert in_order(found) == wanted


def test_a_flag_that_nobody_gave_does_not_count(loading) -> None:
    configuration = loading("logLevel: debug\n", overrides={"logLevel": None, "vendors": {"acme": {"enabled": None}}})

    assert configuration.settings.log_level == "debug"
    assert "acme" in configuration.vendors


def test_the_effective_configuration_is_plain_and_complete(loading) -> None:
    effective = loading("vendors: {zeta: {enabled: false}}\n", device="acme: {deviceSplitCount: 4}").effective()

    assert effective["nodeName"] == "n1"
    assert effective["kubeletDir"] == "/var/lib/kubelet/device-plugins"
    assert effective["health"]["suspectLooks"] == 2
    assert effective["vendors"]["acme"]["deviceSplitCount"] == 4
    assert effective["vendors"]["acme"]["filterDevices"] == {"uuid": [], "index": []}
    assert effective["vendors"]["zeta"] == {"enabled": False, "speed": 1}


def test_the_effective_configuration_loads_as_a_file_with_the_same_result(loading) -> None:
    first = loading("rescanSeconds: 7\n", device="acme: {filterDevices: {uuid: [x]}}")

    second = loading(yaml.safe_dump(first.effective()), environment={})

    assert (second.settings, second.vendors) == (first.settings, first.vendors)


@settings(deadline=None)
@given(
    own=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["nodeName", "health", "vendors", "acme", "filterDevices", "profiles", "index", "x"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_yaml_is_either_a_configuration_or_a_list_of_lines(
    tmp_path_factory: pytest.TempPathFactory, acme: type[VendorSettings], own: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(own))

    try:
        outcome: object = load(
            config=path,
            device_config=path,
            node_config=None,
            overrides={},
            environment={},
            vendor_settings=lambda _: acme,
            vendor_names=("acme",),
        )
    except ConfigError as error:
        outcome = error.problems
    assert outcome
    assert isinstance(outcome, Configuration) or all(
        re.fullmatch(r"(configuration|environment|/).+", line) for line in outcome
    )
