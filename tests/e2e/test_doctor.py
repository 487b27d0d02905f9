"""``hami-plugin doctor`` and ``support-bundle`` as commands, beside a daemon that runs."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tarfile
from typing import Any

import pytest

from hami_plugin.demo.node import SimulatedNode, environment
from tests.e2e.manifests import small
from tests.e2e.steps import WITHIN_S, bring_up, probed

SECRET = "sesame-of-the-account"  # of the kubeconfig, a pod and a node


async def ran(stage: SimulatedNode, *arguments: str) -> tuple[int, bytes, str]:
    options = [word for option in stage.options.items() if option[0] != "--log-format" for word in option]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hami_plugin", *arguments, *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    async with asyncio.timeout(WITHIN_S):
        out, err = await process.communicate()
    return process.returncode or 0, out, err.decode()


@pytest.mark.full
async def test_doctor_follows_a_node_from_well_to_broken_and_packs_what_it_sees(running: Any) -> None:
    stage = await running(usageSeconds=0.05)
    secret = {"example.com/token": SECRET, "kubectl.kubernetes.io/last-applied-configuration": SECRET}
    manifest = small("busy", stage.family.resources)
    manifest["metadata"]["annotations"] = secret
    manifest["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": SECRET}]
    await bring_up(stage, manifest)
    stage.api.write_kubeconfig(stage.directory / "kubeconfig", token=SECRET)
    stage.api.annotate_node(stage.node, secret)
    stage.report_counts()
    await probed(stage, 200)

    status, out, err = await ran(stage, "doctor")
    assert (status, "✗" in out.decode()) == (0, False), (out.decode(), err)
    assert "✓ rights: are complete" in out.decode()
    status, out, err = await ran(stage, "doctor", "demo/busy")
    assert status == 0, (out.decode(), err)
    assert "has handed the devices out" in out.decode()

    (stage.directory / "hook/vgpu/libvgpu.so").unlink()
    await probed(stage, 503)
    status, out, err = await ran(stage, "doctor", "--json")
    document = json.loads(out)
    assert (status, document["cause"]) == (1, "host nvidia.com/gpu"), (out.decode(), err)
    assert "daemon: host nvidia.com/gpu" in [one["check"] for one in document["findings"]]

    status, out, err = await ran(stage, "support-bundle", "--output", "-")
    assert status == 0, err
    with tarfile.open(fileobj=io.BytesIO(out)) as archive:
        files = {entry.name: archive.extractfile(entry) for entry in archive}
        texts = {name.partition("/")[2]: file.read() for name, file in files.items() if file}
    assert SECRET.encode() not in b"".join(texts.values())
    assert json.loads(texts["doctor.json"])["cause"] == "host nvidia.com/gpu"
    assert json.loads(texts["daemon/readyz.json"])["ready"] is False
    assert b"hami_plugin_" in texts["daemon/metrics.txt"]
    assert json.loads(texts["pods.json"])[0]["metadata"]["name"] == "busy"
