"""``hami-plugin fit``: which devices a pod would get, or why none, and what would make it fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from hami_plugin.cli import main

CARDS = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "node.yaml", node("gpu-1"))
    save(tmp_path / "pods.yaml", listed())
    return tmp_path


def save(path: Path, *documents: Any) -> Path:
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return path


def listed(*items: Any) -> Any:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def node(name: str, *, memory: int = 80000, health: bool = True) -> Any:
    cards = [
        {"id": f"{name}-G{n}", "index": n, "count": 10, "devmem": memory, "devcore": 100, "type": "NVIDIA H100"}
        for n in range(CARDS)
    ]
    register = json.dumps([{**card, "health": health, "mode": "hami-core"} for card in cards])
    return {"kind": "Node", "metadata": {"name": name, "annotations": {"hami.io/node-nvidia-register": register}}}


def pod(name: str = "train", annotations: Any = None, **limits: int) -> Any:
    wanted = {f"nvidia.com/{key}": str(value) for key, value in limits.items()}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": wanted}}]},
    }


def running(name: str, cards: str, memory: int, cores: int, where: str = "gpu-1") -> Any:
    text = "".join(f"{where}-G{card},NVIDIA,{memory},{cores}:" for card in cards)
    placed = {"hami.io/vgpu-node": where, "hami.io/vgpu-devices-allocated": f"{text};"}
    return {**pod(name, placed, gpu=len(cards)), "status": {"phase": "Running"}}


def fit(folder: Path, *arguments: str) -> tuple[int, str]:
    node_file = () if "--simulate" in arguments or "--node" in arguments else ("--node", str(folder / "node.yaml"))
    call = ["fit", str(folder / "pod.yaml"), *node_file, "--pods", str(folder / "pods.yaml"), *arguments]
    result = CliRunner().invoke(main, call)
    return result.exit_code, result.output


def remedies(folder: Path, *arguments: str) -> list[str]:
    code, output = fit(folder, "--json", *arguments)
    assert code == 1, output
    (one,) = json.loads(output)["nodes"]
    return [remedy["what"] for remedy in one["remedies"]]


def test_the_answer_names_the_node_and_the_devices(folder: Path) -> None:
    save(folder / "pod.yaml", pod(gpu=2, gpumem=1000))

    code, output = fit(folder)

    assert code == 0
    assert output.startswith("Pod ml/train fits: node gpu-1.\n")
    assert "container main requests 2 x nvidia.com/gpu, 1000 MiB of each" in output
    assert output.count("no limit on cores") == 2


def test_a_refusal_tells_of_each_device_why(folder: Path) -> None:
    save(folder / "pod.yaml", pod(gpu=4, gpumem=50000, gpucores=50))
    save(folder / "pods.yaml", listed(running("a", "0", 40000, 0), running("b", "1", 100, 80)))

    code, output = fit(folder)

    assert code == 1
    assert "does not fit on node gpu-1" in output
    assert "2 of the node's 4 devices are suitable, 4 requested" in output
    assert "no: 50000 MiB requested, 40000 free" in output
    assert "no: 50 cores requested, 20 free" in output
    assert output.count("  suitable  ") == 2


def test_what_is_told_to_help_was_tried(folder: Path) -> None:
    save(folder / "pod.yaml", pod(gpu=4, gpumem=50000))
    save(folder / "pods.yaml", listed(running("a", "0", 40000, 0)))

    assert remedies(folder) == [
        "if container main requests nvidia.com/gpumem: 40000 instead of 50000",
        "if container main requests nvidia.com/gpu: 3 instead of 4",
        "once pod ml/a has ended",
    ]
    for better in (pod(gpu=4, gpumem=40000), pod(gpu=3, gpumem=50000)):
        save(folder / "pod.yaml", better)
        assert fit(folder)[0] == 0


def test_a_whole_card_may_become_a_share(folder: Path) -> None:
    """Admission makes a card without further words an exclusive one; memory of its own undoes that."""
    save(folder / "pod.yaml", pod(gpu=4))
    save(folder / "pods.yaml", listed(running("a", "0", 40000, 10)))

    code, output = fit(folder, "--explain")

    assert code == 1
    assert "Admission adds to container main: nvidia.com/gpucores: 100" in output
    assert "if container main requests nvidia.com/gpumem: 40000" in output


def test_memory_and_cores_are_lowered_together_when_neither_alone_helps(folder: Path) -> None:
    save(folder / "pod.yaml", pod(gpu=1, gpumem=50000, gpucores=50))
    save(folder / "pods.yaml", listed(*(running(f"p{card}", card, 40000, 60) for card in "0123")))

    assert remedies(folder)[0] == (
        "if container main requests nvidia.com/gpumem: 40000 instead of 50000 and nvidia.com/gpucores: 40 instead of 50"
    )


def test_an_annotation_that_stands_in_the_way_is_named(folder: Path) -> None:
    save(folder / "pod.yaml", pod(gpu=1, gpumem=1000, annotations={"nvidia.com/use-gpuuuid": "GPU-elsewhere"}))

    assert remedies(folder) == ["without the pod's annotation nvidia.com/use-gpuuuid: GPU-elsewhere"]
    assert "the pod's annotations name other devices" in fit(folder)[1]


def test_a_number_that_does_not_go_together_is_told_with_those_that_do(folder: Path) -> None:
    capacity = {"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "32"}
    labels = {"node.kubernetes.io/instance-type": "trn1.32xlarge"}
    metadata = {"name": "trn1", "labels": labels}
    save(folder / "node.yaml", {"kind": "Node", "metadata": metadata, "status": {"capacity": capacity}})
    three = pod()
    three["spec"]["containers"][0]["resources"]["limits"] = {"aws.amazon.com/neuron": "3"}
    save(folder / "pod.yaml", three)

    code, output = fit(folder)

    assert code == 1
    assert "16 of the node's 16 devices are suitable, 3 requested; too few devices that belong together" in output
    assert "aws.amazon.com/neuron: 1 instead of 3" in output
    assert "aws.amazon.com/neuron: 4 instead of 3" in output


def test_several_pods_may_have_to_end(folder: Path) -> None:
    save(folder / "pod.yaml", pod(gpu=4, gpumem=80000))
    save(folder / "pods.yaml", listed(running("a", "0", 9000, 0), running("b", "1", 9000, 0)))

    assert "once the other pods with nvidia.com/gpu on this node have ended" in remedies(folder)


def test_a_quota_is_counted_and_named(folder: Path) -> None:
    hard = {"limits.nvidia.com/gpumem": "10000"}
    quota = {"kind": "ResourceQuota", "metadata": {"namespace": "ml"}, "spec": {"hard": hard}}
    save(folder / "quota.yaml", quota)
    save(folder / "pod.yaml", pod(gpu=1, gpumem=2000))
    save(folder / "pods.yaml", listed(running("a", "0", 9000, 0)))

    assert remedies(folder, "--quota", str(folder / "quota.yaml")) == [
        "if container main requests nvidia.com/gpumem: 1000 instead of 2000",
        "with a larger quota of namespace ml",
        "once pod ml/a has ended",
    ]


def test_nothing_helps_on_a_node_of_broken_cards(folder: Path) -> None:
    save(folder / "node.yaml", node("gpu-1", health=False))
    save(folder / "pod.yaml", pod(gpu=1, gpumem=1))

    code, output = fit(folder)

    assert code == 1
    assert output.count("no: it is not healthy") == CARDS
    assert "No tested change makes it fit" in output


def test_of_several_nodes_the_best_is_chosen_and_told_first(folder: Path) -> None:
    save(folder / "node.yaml", listed(node("gpu-1"), node("gpu-2"), node("small", memory=100)))
    save(folder / "pod.yaml", pod(gpu=1, gpumem=1000))
    save(folder / "pods.yaml", listed(running("a", "0", 40000, 0, where="gpu-2")))

    code, output = fit(folder, "--json")
    report = json.loads(output)

    assert code == 0
    assert report["node"] == "gpu-2"
    assert [(one["node"], one["fits"]) for one in report["nodes"]] == [
        ("gpu-2", True),
        ("gpu-1", True),
        ("small", False),
    ]
    assert fit(folder, "--node-scheduler-policy", "spread")[1].startswith("Pod ml/train fits: node gpu-1 (")


def test_a_workloads_pod_is_asked_about(folder: Path) -> None:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": pod(gpu=1, gpumem=1000)["spec"]}
    save(
        folder / "pod.yaml",
        {"kind": "Service", "metadata": {"name": "web"}},
        {"kind": "Deployment", "metadata": {"name": "web", "namespace": "ml"}, "spec": {"template": template}},
    )

    assert fit(folder)[1].startswith("Pod ml/web fits")


def test_the_decision_is_explained_up_to_the_annotations(folder: Path) -> None:
    save(folder / "pod.yaml", pod(gpu=1, gpumem=1000))
    save(folder / "pods.yaml", listed(running("other", "0", 40000, 0)))

    _, output = fit(folder, "--explain", "--gpu-scheduler-policy", "binpack")

    assert "devices are tried in the order 'binpack'" in output
    assert "yes: 1000 MiB, 0 cores" in output
    assert "hami.io/vgpu-devices-to-allocate: gpu-1-G0,NVIDIA,1000,0:;" in output
    assert " other " in output


def test_a_simulated_machine_stands_for_a_node(folder: Path) -> None:
    save(folder / "pod.yaml", pod(gpu=8, gpumem=1000))

    code, output = fit(folder, "--simulate", "dgx-1v")

    assert code == 0, output
    assert "node dgx-1v" in output


def test_an_amount_that_means_nothing_is_said(folder: Path) -> None:
    wrong = pod(gpu=1)
    wrong["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "-5"
    save(folder / "pod.yaml", wrong)

    code, output = fit(folder)

    assert code == 1
    assert "nvidia.com/gpumem=-5" in output


def test_a_denied_pod_is_an_error_with_the_reason(folder: Path) -> None:
    save(folder / "pod.yaml", pod(**{"gpu": 1, "gpumem-percentage": 101}))

    code, output = fit(folder)

    assert code == 1
    assert "denied by admission" in output
    assert "101" in output


def test_annotations_that_nobody_can_read_are_told(folder: Path) -> None:
    broken = running("broken", "0", 1, 0)
    broken["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = "G0,NVIDIA,x,0:;"
    save(folder / "pod.yaml", pod(gpu=1, gpumem=1000))
    save(folder / "pods.yaml", listed(broken))

    code, output = fit(folder)

    assert code == 0
    assert "! unreadable: pod ml/broken, hami.io/vgpu-devices-allocated" in output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("kind: Service", "has 0 pods (Service)"),
        ("{", "cannot be read as YAML or JSON"),
        ("kind: Pod\nkind: Job\n", '"kind" is set twice in one mapping, on lines 1 and 2'),
    ],
)
def test_a_file_without_a_pod_is_named(folder: Path, content: str, said: str) -> None:
    (folder / "pod.yaml").write_text(content)

    code, output = fit(folder)

    assert code == 1
    assert said in output


def test_a_node_is_needed(folder: Path) -> None:
    save(folder / "pod.yaml", pod(gpu=1))

    result = CliRunner().invoke(main, ["fit", str(folder / "pod.yaml")])

    assert result.exit_code == 1
    assert "--simulate" in result.output


def asked_of(folder: Path, profile: str, option: str = "--profile", *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["fit", str(folder / "pod.yaml"), option, profile, *more])
    return result.exit_code, result.output


def of_limits(**limits: int) -> Any:
    wanted = {key: str(value) for key, value in limits.items()}
    return {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ml"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": wanted}}]},
    }


PART = {"cambricon.com/vmlu": 1, "cambricon.com/mlu.smlu.vmemory": 10, "cambricon.com/mlu.smlu.vcore": 10}


@pytest.mark.parametrize("option", ["--profile", "--simulate"])
@pytest.mark.parametrize("resource", ["cambricon.com/vmlu", "example.com/quantum"])
def test_what_the_node_does_not_offer_does_not_fit(folder: Path, resource: str, option: str) -> None:
    save(folder / "pod.yaml", of_limits(**{resource: 1}))

    code, output = asked_of(folder, "dgx-1v", option)

    assert code == 1
    assert "does not fit on node dgx-1v" in output


def test_a_part_that_the_daemon_would_refuse_does_not_fit_and_whole_devices_would(folder: Path) -> None:
    save(folder / "pod.yaml", of_limits(**PART))

    code, output = asked_of(folder, "cambricon-mlu590-8")

    assert code == 1
    assert "the node serves whole devices only: only an sMLU instance" in output
    assert "- if container main requests whole devices: without cambricon.com/mlu.smlu.vmemory and" in output


def test_the_daemons_configuration_decides_what_fits(folder: Path) -> None:
    save(folder / "pod.yaml", of_limits(**PART))
    config = save(folder / "config.yaml", {"vendors": {"cambricon": {"unlimitedShares": True}}})

    assert asked_of(folder, "cambricon-mlu590-8", "--profile", "--config", str(config))[0] == 0


@pytest.mark.difference("D-373")
def test_memory_without_a_device_is_denied(folder: Path) -> None:
    save(folder / "pod.yaml", of_limits(**{"cambricon.com/mlu.smlu.vcore": 10}))

    code, output = asked_of(folder, "cambricon-mlu590-8")

    assert code == 1
    assert "asks for cambricon.com/mlu.smlu.vcore, and for no cambricon.com/vmlu" in output


@pytest.mark.parametrize(
    ("limits", "code", "says"),
    [
        ({"mig-1g.10gb": 2}, 0, "Node a100-pcie-2-mig: fits"),
        ({"mig-1g.10gb": 3}, 1, "Insufficient nvidia.com/mig-1g.10gb: 3 asked for; node a100-pcie-2-mig has 2"),
        ({"mig-7g.80gb": 1}, 1, "Insufficient nvidia.com/mig-7g.80gb"),
        ({"gpu": 1, "mig-3g.40gb": 1}, 0, "GPU-00000001-5150-4ccd-8a11-667bc5cd0001"),
    ],
)
def test_mig_instances_are_counted_as_the_kubelet_counts_them(
    limits: dict[str, int], code: int, says: str, folder: Path
) -> None:
    save(folder / "pod.yaml", pod(**limits))
    config = save(folder / "config.yaml", {"vendors": {"nvidia": {"migStrategy": "mixed"}}})

    answer = fit(folder, "--simulate", "a100-pcie-2-mig", "--config", str(config))

    assert answer[0] == code
    assert says in answer[1]


PROFILES = {"1g.10gb": (9984, 1, range(7)), "3g.40gb": (40448, 4, (0, 4)), "7g.80gb": (81152, 8, (0,))}


def cut_node() -> Any:
    offered = [
        {"name": name, "memoryMB": mib, "core": 1, "sliceCount": 1, "placements": [{"start": s, "size": z} for s in at]}
        for name, (mib, z, at) in PROFILES.items()
    ]
    card = {"count": 7, "devmem": 81559, "devcore": 100, "type": "NVIDIA H100", "health": True, "mode": "mig"}
    register = json.dumps([{**card, "id": f"G{n}", "index": n, "migProfiles": offered} for n in range(2)])
    return {"kind": "Node", "metadata": {"name": "n", "annotations": {"hami.io/node-nvidia-register": register}}}


def with_instance(name: str, card: str, start: int) -> Any:
    place = {"containerIndex": 0, "deviceIndex": 0, "gpuUUID": card, "profile": "1g.10gb"}
    notes = {
        "hami.io/vgpu-node": "n",
        "hami.io/vgpu-devices-allocated": f"{card},NVIDIA,9984,14:;",
        "hami.io/vgpu-mig-allocations": json.dumps([{**place, "placement": {"start": start, "size": 1}}]),
    }
    return {**pod(name, notes, gpu=1), "status": {"phase": "Running"}}


def test_an_explanation_shows_how_cut_cards_are_fragmented(folder: Path) -> None:
    save(folder / "node.yaml", cut_node())
    save(folder / "pods.yaml", *(with_instance(f"p{n}", "G0", start) for n, start in enumerate((0, 4))))
    save(folder / "pod.yaml", pod(gpu=1, gpumem=39000))

    status, said = fit(folder, "--explain")
    first, second = json.loads(fit(folder, "--json")[1])["nodes"][0]["steps"][0]["devices"]

    assert status == 0
    assert "no: it has no free placement for an instance of this size, though 6 of 8 slices are free" in said
    assert "7 x 1g.10gb, 2 x 3g.40gb, 1 x 7g.80gb" in said
    assert (first["slices_free"], first["slices_total"]) == (6, 8)
    assert first["places_left"] == {"1g.10gb": 5, "3g.40gb": 0, "7g.80gb": 0}
    assert (second["verdict"], second["slices_free"]) == ("granted", 8)
    save(folder / "node.yaml", node("gpu-1"))
    save(folder / "pods.yaml", listed())
    assert "PLACES LEFT" not in fit(folder, "--explain")[1]
