"""Whoever may create one pod must not stop scheduling: the scheduler's process with odd pods in its first list."""

import json

import pytest

from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.scale import spread
from tests.support.scheduler_process import started
from tests.support.scheduling import add_node, ask, binding, manifest, until


def deep(levels: int) -> bytes:
    return b'{"f:a":' * levels + b"{}" + b"}" * levels


def containers_of_five(body: bytes) -> bytes:
    item = json.dumps({"containers": [{"name": "odd"}]}).encode()[1:-1]
    return body.replace(item, b'"containers": 5')


EDITS = {
    "1,200 deep": lambda body: body.replace(b'"a deep tree"', deep(1200)),
    "9,000 deep": lambda body: body.replace(b'"a deep tree"', deep(9000)),
    "containers are a number": containers_of_five,
    "no metadata": lambda body: body.replace(b'"metadata": {"name": "odd"', b'"metadata": null, "was": {"name": "odd"'),
}


@pytest.mark.parametrize("edit", spread(EDITS.values(), part=2), ids=spread(EDITS, part=2))
async def test_pods_are_decided_and_bound_beside_one_that_nobody_can_read(tmp_path, edit):
    async with SimulatedApiServer() as server:
        add_node(server, "n1", 8, counted=80)
        server.edit(edit, "(GET|WATCH) /api/v1/pods")
        fields = [{"fieldsV1": "a deep tree"}]
        server.create_pod(
            {
                "metadata": {"name": "odd", "namespace": "team", "managedFields": fields},
                "spec": {"containers": [{"name": "odd"}]},
            }
        )
        async with started(server, tmp_path) as running:
            await running.ready()
            pod = server.create_pod(manifest("p", memory=1000))
            answer = await running.post("/filter", ask(server, pod))
            assert answer["NodeNames"] == ["n1"]
            assert await running.post("/bind", binding(pod, "n1")) == {"Error": ""}
            await until(lambda: any(line["event"] == "an object cannot be read" for line in running.log))
            _status, metrics = await running.get("/metrics")
            assert 'hami_plugin_api_objects_unreadable_total{kind="pods"}' in metrics
            assert await running.ended() == 0
