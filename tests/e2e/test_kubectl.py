"""``kubectl hami`` beside a daemon that runs: what a live cluster has, who uses it, and where a pod would go."""

from __future__ import annotations

import asyncio
import json
import lzma
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from hami_plugin.cli.kubectl import kubectl as plugin
from hami_plugin.demo.node import SimulatedNode, environment
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.e2e.manifests import asking, manifest, small
from tests.e2e.steps import WITHIN_S, bring_up
from tests.e2e.test_restarted_containers import begin
from tests.e2e.test_usage import CONTEXT, GIB, REGION, until_read

ENTRY = "import sys; from hami_plugin.cli.kubectl import main; sys.exit(main())"


async def kubectl(stage: SimulatedNode, *arguments: str) -> tuple[int, str, str]:
    """The plugin's own code in a thread."""
    words = [*arguments, "--kubeconfig", str(stage.options["--kubeconfig"])]
    done = await asyncio.to_thread(CliRunner().invoke, plugin, words)
    return done.exit_code, done.stdout, done.stderr


async def as_process(stage: SimulatedNode, *arguments: str) -> tuple[int, str, str]:
    """As kubectl calls its plugin."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ENTRY, *arguments, "--kubeconfig", str(stage.options["--kubeconfig"])),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    async with asyncio.timeout(WITHIN_S):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def daemon_pod(api: SimulatedApiServer, stage: SimulatedNode) -> None:
    """The daemon as a pod of the cluster, whose port the API server reaches."""
    container = {"name": "daemon", "image": "hami-plugin", "args": ["run"], "ports": [{"containerPort": 9394}]}
    labels = {"app.kubernetes.io/name": "hami-plugin"}
    meta = {"name": "daemon-x", "namespace": "hami-system", "labels": labels}
    api.create_pod({"metadata": meta, "spec": {"nodeName": stage.node, "containers": [container]}})
    api.pod_ports["hami-system/daemon-x:9394"] = f"http://{stage.options['--http']}"


async def test_status_and_top_show_what_pods_have_and_use_and_what_is_unhealthy(running: Any) -> None:
    stage = await running(usageSeconds=0.05)
    code, out, err = await kubectl(stage, "top")
    assert (code, out) == (0, "")
    assert "no pod has devices" in err
    resources = stage.family.resources
    pod = await bring_up(stage, manifest("busy", [asking("main", resources, count=2, memory=4096, cores=30)]))
    region = await begin(stage, pod, "main")
    region.write_bytes(lzma.decompress(REGION.read_bytes()))
    await until_read(stage, "ok")
    stage.report_counts()

    code, out, err = await as_process(stage, "status")
    assert code == 0, err
    row = next(line for line in out.splitlines() if line.startswith(stage.node))
    assert "2 of 80" in row
    assert "8192 of" in row
    assert "60 of 800" in row

    code, out, err = await kubectl(stage, "top", "--json")
    assert code == 0, err
    assert "no daemon of hami-plugin runs there" in err
    assert {one["memoryUsed"] for one in json.loads(out)} == {None}
    daemon_pod(stage.api, stage)
    code, out, err = await kubectl(stage, "top", stage.node)
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines() if "demo/busy" in line]
    assert len(rows) == 2
    assert any(f"{(GIB + CONTEXT) >> 20} MiB" in line for line in rows)
    assert all("4096 MiB" in line for line in rows)

    stage.hardware.simulator.inject("lost", 3)
    await stage.until(lambda: not all(one.health for one in stage.registered()), "the fault", WITHIN_S)
    code, out, _err = await kubectl(stage, "status", "--json")
    assert code == 1
    assert json.loads(out)[0]["healthy"] == 7


@pytest.mark.full
async def test_fit_reads_the_live_cluster_its_pods_and_its_quotas(running: Any, tmp_path: Path) -> None:
    stage = await running()
    stage.report_counts()
    resources = stage.family.resources
    file = tmp_path / "pod.yaml"
    wanted = manifest("wants", [asking("main", resources, count=8, memory=50000)])
    file.write_text(yaml.safe_dump({"kind": "Pod", **wanted}))

    code, out, err = await kubectl(stage, "fit", str(file))
    assert code == 0, (out, err)
    assert stage.node in out

    await bring_up(stage, manifest("first", [asking("main", resources, count=1, memory=60000)]))
    code, out, err = await kubectl(stage, "fit", str(file), "--json")
    assert code == 1, (out, err)
    assert json.loads(out)["fits"] is False

    small_one = tmp_path / "small.yaml"
    small_one.write_text(yaml.safe_dump({"kind": "Pod", **small("little", resources)}))
    code, out, err = await kubectl(stage, "fit", str(small_one))
    assert code == 0, (out, err)
    stage.api.create_quota("demo", "none", {f"limits.{resources.memory}": "1"})
    code, out, err = await kubectl(stage, "fit", str(small_one))
    assert code == 1, (out, err)
    assert "quota" in out


@pytest.mark.full
async def test_why_says_what_a_pod_waits_for(running: Any) -> None:
    stage = await running()
    stage.report_counts()
    wanted = manifest("waits", [asking("main", stage.family.resources, count=1, memory=9_000_000)])
    wanted["spec"]["schedulerName"] = "hami-scheduler"
    stage.api.create_pod(wanted)

    code, out, err = await kubectl(stage, "why", "demo/waits")

    assert code == 1, err
    assert "✗ rules: 1 of 1 nodes" in out
    code, out, err = await kubectl(stage, "why", "nobody")
    assert code == 1
    assert "there is none of this name" in out
