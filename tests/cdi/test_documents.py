"""Does a spec survive being written and read, as JSON and as YAML, with the least version?"""

import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cdi.documents import plain_spec, read, to_json, to_yaml, write, yaml_text
from cdi.errors import InvalidNameError, InvalidSpecError
from cdi.names import Kind
from cdi.spec import ContainerEdits, DeviceNode, Mount, Spec, SpecDevice
from cdi.validate import VERSIONS, least_version, problems, traps
from tests.support.specs import spec, specs, words

plain = st.recursive(
    words | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)


@given(specs)
def test_any_spec_is_accepted_and_survives_json_and_yaml(made):
    assert problems(plain_spec(made)) == ()
    assert read(to_json(made), "a.json") == made
    assert read(to_yaml(made), "a.yaml", yaml=yaml.safe_load) == made


@given(specs)
def test_any_spec_has_the_least_version_that_a_validator_accepts(made):
    document = plain_spec(made)

    accepted = [version for version in VERSIONS if not problems({**document, "cdiVersion": version})]

    assert accepted == list(VERSIONS[VERSIONS.index(document["cdiVersion"]) :])


@given(specs)
def test_without_what_asks_for_a_version_an_older_one_does(made):
    version = least_version(plain_spec(made))
    if version == VERSIONS[0]:
        return

    assert VERSIONS.index(least_version(plain_spec(without(made, version)))) < VERSIONS.index(version)


def without(made, version):
    """``made`` without anything that came with ``version``."""
    match version:
        case "0.7.0":
            return changed(made, lambda edits: replace(edits, intel_rdt=None, additional_gids=()))
        case "0.6.0":
            devices = tuple(replace(device, annotations={}) for device in made.devices)
            kind = replace(made.kind, cls=made.kind.cls.replace(".", "-"))
            return replace(made, kind=kind, annotations={}, devices=devices)
        case "0.5.0":
            devices = tuple(replace(device, name=f"x{device.name}") for device in made.devices)
            return changed(
                replace(made, devices=devices),
                lambda edits: replace(
                    edits, device_nodes=tuple(replace(node, host_path="") for node in edits.device_nodes)
                ),
            )
        case "0.4.0":
            return changed(
                made, lambda edits: replace(edits, mounts=tuple(replace(mount, type="") for mount in edits.mounts))
            )


def changed(made, change):
    devices = tuple(replace(device, edits=change(device.edits)) for device in made.devices)
    return replace(made, edits=change(made.edits), devices=devices)


@given(plain)
def test_every_reader_of_yaml_reads_the_blocks_as_they_were_meant(value):
    assert yaml.safe_load(yaml_text(value)) == value


def test_yaml_is_written_for_people():
    made = spec("0", "gpu-b", env={"MOTD": "hello: world"}, mounts=(Mount(host_path="/a", container_path="/b"),))

    assert to_yaml(made) == (
        'cdiVersion: "0.5.0"\n'
        "kind: example.com/gpu\n"
        "containerEdits:\n"
        "  env:\n"
        '    - "MOTD=hello: world"\n'
        "  mounts:\n"
        "    - hostPath: /a\n"
        "      containerPath: /b\n"
        "      options:\n"
        "        - ro\n"
        "        - nosuid\n"
        "        - nodev\n"
        "        - rbind\n"
        "        - rprivate\n"
        "devices:\n"
        '  - name: "0"\n'
        "    containerEdits:\n"
        "      env:\n"
        "        - GPU=0\n"
        "  - name: gpu-b\n"
        "    containerEdits:\n"
        "      env:\n"
        "        - GPU=gpu-b\n"
    )


def test_the_files_name_decides_how_it_is_written():
    assert json.loads(write(spec("gpu0"), "x.json"))["kind"] == "example.com/gpu"
    assert write(spec("gpu0"), "x.yaml").startswith("cdiVersion:")
    with pytest.raises(ValueError, match=r'"x\.yml" is not the name of a spec'):
        write(spec("gpu0"), "x.yml")


@pytest.mark.parametrize(
    ("edits", "wrong"),
    [
        (ContainerEdits(), 'device "gpu0": containerEdits: must add something, is empty'),
        (ContainerEdits(device_nodes=(DeviceNode(path="x"),)), 'deviceNodes[0].path: must be absolute, is "x"'),
        (ContainerEdits(env={"A": "b\0c"}), "containerEdits.env[0]: must not contain NUL"),
        (ContainerEdits(env={"A": "\ud800"}), "containerEdits.env[0]: must be Unicode text"),
    ],
)
def test_what_a_runtime_would_refuse_is_not_written(edits, wrong):
    made = spec("gpu0")
    made = replace(made, devices=(replace(made.devices[0], edits=edits),))

    for written in (to_json, to_yaml):
        with pytest.raises(InvalidSpecError) as refused:
            written(made, "ours.json")
        assert wrong in str(refused.value)
        assert str(refused.value).startswith("ours.json: ")


def test_json_is_readable_for_the_readers_of_yaml_that_runtimes_have():
    """They refuse control characters that are not escaped, and halves of a surrogate pair that are."""
    made = spec("gpu0", env={"A": "\x80\u2028\ufeff \x01 é \U0001f600 \U000e0001"})

    written = to_json(made)

    assert "\\u0080\\u2028\\uFEFF \\u0001 é \U0001f600 \U000e0001" in written
    assert yaml.safe_load(written) == json.loads(written) == plain_spec(made)


def test_a_variable_is_not_torn_at_an_equals_sign_in_its_name():
    with pytest.raises(InvalidNameError, match='variable "A=B" has "=" in its name'):
        to_json(spec("gpu0", env={"A=B": "c"}))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "a.json: is not readable: Expecting value"),
        ('{"kind": "a', "a.json: is not readable: Unterminated string"),
        ('{"kind": "a", "kind": "b"}', 'a.json: is not readable: "kind" is set twice in one mapping'),
        ('{"devices": NaN}', "a.json: is not readable: NaN is not JSON"),
        ("[" * 100_000, "a.json: is nested too deeply"),
        ('"text"', 'a.json: must be a mapping, is "text"'),
        ("null", "a.json: must be a mapping"),
    ],
)
def test_text_that_is_no_document_is_refused_with_the_reason(text, wrong):
    with pytest.raises(InvalidSpecError) as refused:
        read(text, "a.json")

    assert str(refused.value).startswith(wrong)


def test_yaml_needs_a_reader_and_says_so():
    with pytest.raises(InvalidSpecError, match=r"a\.yaml: is YAML, and there is no reader of YAML here; pass one"):
        read(to_yaml(spec("gpu0")), "a.yaml")
    with pytest.raises(InvalidSpecError, match=r"a\.yaml: is not readable: mapping values are not allowed here"):
        read("a: b: c", "a.yaml", yaml=yaml.safe_load)


def test_a_mount_says_once_whether_it_can_be_written_to():
    with pytest.raises(ValueError, match='options of the mount at "/b" have ro or rw; use read_only'):
        Mount(host_path="/a", container_path="/b", options=("ro", "bind"))


@pytest.mark.parametrize("kind", ["", "bind", "none"])
def test_a_mount_that_binds_nothing_is_read_but_not_written(kind):
    made = spec("gpu0", mounts=(Mount(host_path="/a", container_path="/b", options=("nosuid",), type=kind),))

    assert problems(plain_spec(made)) == ()
    with pytest.raises(InvalidSpecError, match=r"^x.json: containerEdits.mounts\[0\].options: must have bind or rbind"):
        to_json(made, "x.json")


def test_a_device_whose_mount_binds_nothing_is_named():
    mount = Mount(host_path="/a", container_path="/b", options=())
    made = Spec(
        kind=Kind.parse("example.com/gpu"), devices=(SpecDevice(name="gpu0", edits=ContainerEdits(mounts=(mount,))),)
    )

    (trap,) = traps(plain_spec(made))

    assert (trap.device, trap.field) == ("gpu0", "containerEdits.mounts[0].options")


def test_a_file_system_of_its_own_needs_no_bind():
    scratch = Mount(host_path="tmpfs", container_path="/b", read_only=False, options=(), type="tmpfs")

    assert "tmpfs" in to_yaml(spec("gpu0", mounts=(scratch,)))


@pytest.mark.parametrize(
    ("options", "read_only"), [(["ro"], True), (["rw", "bind"], False), (None, False), (["ro", "rw"], False)]
)
def test_the_last_word_on_writing_counts(options, read_only):
    document = plain_spec(spec("gpu0", mounts=(Mount(host_path="/a", container_path="/b"),)))
    document["containerEdits"]["mounts"][0]["options"] = options

    (mount,) = read(json.dumps(document), "a.json").edits.mounts

    assert mount.read_only == read_only


def test_annotations_are_measured_in_bytes_as_runtimes_measure_them():
    def annotated(text):
        return {**plain_spec(spec("gpu0")), "cdiVersion": "0.6.0", "annotations": {"key": text}}

    assert not problems(annotated("ü" * (128 * 1024 - 2)))
    (found,) = problems(annotated("ü" * (128 * 1024 - 1)))

    assert str(found) == "annotations: must have at most 262144 bytes together, has 262145"


@pytest.mark.parametrize("text", ['{"a":' * 60 + "1" + "}" * 60, "[" * 60 + "]" * 60], ids=["mappings", "lists"])
def test_a_document_that_is_rather_deep_is_refused_with_the_reason(text):
    for file, reader in (("a.json", None), ("a.yaml", yaml.safe_load)):
        with pytest.raises(InvalidSpecError, match=r"^a\.(json|yaml): is nested more than 50 levels deep"):
            read(text, file, yaml=reader)


def test_a_document_that_contains_itself_is_refused():
    with pytest.raises(InvalidSpecError, match=r"^a\.yaml: is nested more than 50 levels deep, or contains itself"):
        read("devices: &a [*a, *a]", "a.yaml", yaml=yaml.safe_load)
