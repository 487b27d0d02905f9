"""Which specs real runtimes read, which they refuse, and which they do not survive, beside our own validator."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from cdi.documents import read, to_json
from cdi.errors import InvalidSpecError
from cdi.names import Kind
from cdi.validate import VERSIONS, problems, traps
from hami_plugin.host.bounded_yaml import read_yaml
from tests.runtimes.containerd import Containerd, CrashedError
from tests.runtimes.enclosure import enclosed
from tests.runtimes.image import archive
from tests.runtimes.wanted import RefusedError, Wanted

KIND = Kind(vendor="hami-plugin.test", cls="accelerator")
READS = {"podman": "0.5.0", "containerd": "0.8.0"}
"""The newest version that each runtime knows."""


@pytest.mark.parametrize("version", [*VERSIONS, "9.9.9"])
def test_which_versions_a_runtime_reads(runtime, put, request, version):
    put(document(version))
    newest = READS[request.node.callspec.params["runtime"]]

    if version in VERSIONS[: VERSIONS.index(newest) + 1]:
        assert runtime.run(f"{KIND}=d").env == {"A": "b"}
    else:
        with pytest.raises(RefusedError, match="unresolvable CDI devices"):
            runtime.run(f"{KIND}=d")


def document(version="0.7.0", device=None, edits=None, **more):
    device = {"name": "d", "containerEdits": edits or {"env": ["A=b"]}, **(device or {})}
    return {"cdiVersion": version, "kind": str(KIND), "devices": [device], **more}


def of_node(**given):
    return document(edits={"deviceNodes": [{"path": "/dev/zero", **given}]})


DOCUMENTS = {
    "an older version": document("0.2.0"),
    "no devices": {**document(), "devices": []},
    "twins": {**document(), "devices": document()["devices"] * 2},
    "no edits": document(device={"containerEdits": {}}),
    "a digit first, too early": document("0.4.0", {"name": "0"}),
    "a digit first": document("0.5.0", {"name": "0"}),
    "a sign first": document(device={"name": "-d"}),
    "a variable without value": document(edits={"env": ["A"]}),
    "a variable without name": document(edits={"env": ["=b"]}),
    "a field that nobody knows": document(more=1),
    "an edit that nobody knows": document(edits={"env": ["A=b"], "more": 1}),
    "permissions": of_node(permissions="rx"),
    "a type": of_node(type="x"),
    "a number as text": of_node(type="c", major="1", minor=5),
    "a host's node": of_node(hostPath="/dev/null"),
    "a host's node, too early": {**of_node(hostPath="/dev/null"), "cdiVersion": "0.4.0"},
    "a mount without source": document(edits={"mounts": [{"containerPath": "/mnt"}]}),
    "a mount into nowhere": document(edits={"mounts": [{"hostPath": "/srv", "containerPath": "mnt"}]}),
    "a moment that never comes": document(edits={"hooks": [{"hookName": "never", "path": "/bin/true"}]}),
    "a hook without program": document(edits={"hooks": [{"hookName": "prestart"}]}),
    "groups": document(edits={"additionalGids": [44]}),
    "groups, too early": document("0.6.0", edits={"additionalGids": [44]}),
    "annotations": document("0.6.0", annotations={"a": "b"}),
    "annotations, too early": document("0.5.0", annotations={"a": "b"}),
}


@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_containerd_refuses_a_spec_exactly_where_our_validator_does(containerd, put, text):
    put(text)
    wanted = Wanted(cdi=(f"{KIND}={(text['devices'] or [{'name': 'd'}])[0]['name']}",))

    if problems(text):
        with pytest.raises(RefusedError):
            containerd.run(wanted)
    else:
        containerd.run(wanted)


def test_the_documents_tell_both_apart():
    accepted = {name for name, text in DOCUMENTS.items() if not problems(text)}

    assert accepted == {"a digit first", "a host's node", "groups", "annotations"}


REPEATED = {
    "/etc/cdi/test.json": '{"cdiVersion": "0.5.0", "kind": "x.test/a", "kind": "%s", "devices": [%s]}',
    "/etc/cdi/test.yaml": 'cdiVersion: "0.5.0"\nkind: x.test/a\nkind: %s\ndevices: [%s]\n',
}


@pytest.mark.parametrize("path", REPEATED, ids=["JSON", "YAML"])
def test_a_key_that_is_there_twice_is_refused_by_runtimes_and_by_us(runtime, enclosure, path):
    text = REPEATED[path] % (KIND, json.dumps(document()["devices"][0]))
    file = enclosure.path(path)
    enclosure.write(path, text)

    try:
        with pytest.raises(RefusedError, match="unresolvable CDI devices"):
            runtime.run(f"{KIND}=d")
    finally:
        file.unlink()
    with pytest.raises(InvalidSpecError, match="twice"):
        read(text, file.name, yaml=read_yaml)


GOOD = sorted((Path(__file__).parents[1] / "cdi" / "corpus" / "good").iterdir())


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_containerd_reads_what_our_corpus_calls_good(containerd, enclosure, put, path):
    spec = read(path.read_text(encoding="utf-8"), path.name, yaml=yaml.safe_load)
    put(json.loads(to_json(spec)))  # in its least version

    # What a spec names need not be on this machine; but the spec itself is taken.
    assert "unresolvable CDI devices" not in refusal(containerd, Wanted(cdi=tuple(str(name) for name in spec.names)))


def refusal(runtime, wanted):
    try:
        runtime.run(wanted)
    except RefusedError as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("options", [["ro", "rprivate"], ["ro", "rbind"]], ids=" ".join)
@pytest.mark.parametrize("kind", [None, "bind", "tmpfs"])
def test_a_container_starts_exactly_where_our_validator_sees_no_trap(runtime, put, enclosure, kind, options):
    enclosure.write("/srv/bound/file", "bound")
    mount = {"hostPath": "/srv/bound", "containerPath": "/mnt/bound", "options": options, "type": kind}
    text = document("0.5.0", edits={"mounts": [mount]})
    put(text)

    assert problems(text) == ()
    if traps(text):
        with pytest.raises(RefusedError, match="no such device"):
            runtime.run(f"{KIND}=d")
    else:
        assert set(runtime.run(f"{KIND}=d").mounts) == {"/mnt/bound"}


@pytest.mark.parametrize(
    "text",
    [
        {**document(), "kind": "hami-plugin.test/g"},
        document(edits={"deviceNodes": [None]}),
        document(edits={"mounts": [None]}),
        document(edits={"hooks": [None]}),
    ],
    ids=["a class of one letter", "a node that is null", "a mount that is null", "a hook that is null"],
)
def test_our_validator_refuses_a_spec_that_would_end_containerd(tree, present, text):
    with ExitStack() as stack:
        enclosure = present(lambda: stack.enter_context(enclosed(tree)))
        enclosure.write("/image.tar", archive(tree / "bin" / "busybox"))
        containerd = stack.enter_context(Containerd.serving(enclosure, "/image.tar"))
        enclosure.write("/etc/cdi/test.json", json.dumps(text))

        with pytest.raises(CrashedError, match="panic: "):
            containerd.run(Wanted(cdi=(f"{text['kind']}=d",)))

    assert problems(text)
