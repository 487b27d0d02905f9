"""What a support bundle holds, and what it never does."""

import io
import json
import tarfile

import pytest

from hami_plugin.cli.doctor import CUT, MAX_BUNDLE, MAX_FILE, Gathered, packed, without_secrets
from hami_plugin.cli.doctor.findings import ApiFacts, NodeFacts, Unavailable

POD = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "annotations": {"hami.io/vgpu-node": "n1", "example.com/password": "open"},
        "managedFields": [{"manager": "open"}],
    },
    "spec": {
        "nodeName": "n1",
        "containers": [
            {
                "name": "c",
                "env": [{"name": "A", "value": "open"}],
                "command": ["open"],
                "resources": {"limits": {"a": "1"}},
            }
        ],
        "volumes": [{"name": "v", "secret": {"secretName": "open"}}],
    },
    "status": {"phase": "Running", "hostIP": "open"},
}


def gathered(**changes):
    facts = NodeFacts(node="n1", api=ApiFacts(node={"metadata": {"name": "n1"}}, pods=(POD,)))
    return Gathered(**{"facts": facts, "document": {}, "versions": {}, **changes})


def contents(bundle):
    with tarfile.open(fileobj=io.BytesIO(packed(bundle, "b"))) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}


def test_a_pod_is_told_without_its_environment_commands_volumes_and_other_annotations():
    pods = contents(gathered())["b/pods.json"]

    assert b"open" not in pods
    (pod,) = json.loads(pods)
    assert pod["metadata"]["annotations"] == {"hami.io/vgpu-node": "n1"}
    assert pod["spec"]["containers"] == [{"name": "c", "resources": {"limits": {"a": "1"}}}]


@pytest.mark.parametrize(
    "text",
    [
        b"-----BEGIN PRIVATE KEY-----\nSESAME\n-----END PRIVATE KEY-----",
        b"-----BEGIN RSA PRIVATE KEY-----\nSESAME",
        b"Authorization: Bearer SESAME-sesame",
        b"authorization: basic SESAMEsesame=",
        b"token eyJhbGciOiJSESAME.eyJzdWIiOiJTSESAME.SESAME",
        b"http://user:SESAME@proxy:3128/",
        b'{"password": "SESAME"}',
        b"token=SESAME",
    ],
)
def test_what_looks_like_a_credential_is_removed(text):
    cleaned = without_secrets(b"before " + text + b" after")

    assert b"SESAME" not in cleaned
    assert b"[removed]" in cleaned
    assert cleaned.startswith(b"before ")


@pytest.mark.full
def test_a_bundle_is_bounded_however_much_there_is():
    pages = {f"page-{number}": b"a" * (MAX_FILE + 1) for number in range(40)}

    found = contents(gathered(pages=pages))

    assert sum(map(len, found.values())) <= MAX_BUNDLE
    assert len(found["b/daemon/page-0"]) == MAX_FILE
    assert found["b/daemon/page-0"].endswith(CUT)


def test_what_could_not_be_had_says_why():
    found = contents(gathered(files={"journal": Unavailable(text="Permission denied")}))

    assert found["b/files/journal.missing.txt"] == b"Permission denied\n"
