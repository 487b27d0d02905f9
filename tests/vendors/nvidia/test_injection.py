from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdi.spec import DeviceNode, Mount
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.sdk import Injection
from tests.support.hami import answers
from vendors.nvidia import injection
from vendors.nvidia.injection import leftovers, missing_library
from vendors.nvidia.settings import NvidiaSettings

VECTORS = Path(__file__).parents[2] / "vectors/hami-tests/nvidia_device_plugin.json"
HOOK = Path("/usr/local")


def inject(settings: NvidiaSettings, given: Assignment, node: HostFiles) -> Injection:
    """As the family's node side calls it."""
    return injection.inject(settings, settings.delivery, given, node)


def host(tmp_path: Path, *files: str, hook: Path = HOOK) -> HostFiles:
    """A host whose hook directory and /dev are in ``tmp_path``; ``files`` are host paths that exist."""
    node = HostFiles(paths=HostPaths(hook=hook, hook_view=tmp_path / "hook", dev=tmp_path / "dev"))
    for place in map(node.seen, files):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    return node


def share(name: str, memory: int = 3000, cores: int = 30, index: int = 0, minor: int | None = None) -> Share:
    device = Device(
        uuid=name,
        family="NVIDIA",
        index=index,
        model="NVIDIA A100",
        memory=81920,
        minor=index if minor is None else minor,
    )
    return Share(grant=Grant(uuid=name, device_type="NVIDIA", memory=memory, cores=cores), device=device)


def assignment(
    *shares: Share, uid: str = "1111", container: str = "main", env: Mapping[str, str] | None = None
) -> Assignment:
    view = ContainerView(name=container, env=env or {})
    pod = PodView(uid=uid, namespace="default", name="pod-a", containers=(view,))
    return Assignment(pod=pod, container=view, shares=shares)


def test_hamis_golden_allocation_comes_out(tmp_path: Path) -> None:
    node = host(tmp_path, "/usr/local/vgpu/libvgpu.so.v2.10.0")

    given = inject(NvidiaSettings(), assignment(share("GPU-a")), node)

    cache = uuid.uuid5(uuid.NAMESPACE_OID, "1111/main")
    assert list(given.edits.env.items()) == [
        ("NVIDIA_VISIBLE_DEVICES", "GPU-a"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"),
        ("CUDA_DEVICE_SM_LIMIT", "30"),
        ("CUDA_DEVICE_MEMORY_SHARED_CACHE", f"/usr/local/vgpu/{cache}.cache"),
        ("LIBCUDA_LOG_LEVEL", "1"),
    ]
    assert given.edits.mounts == (
        Mount(host_path="/usr/local/vgpu/libvgpu.so.v2.10.0", container_path="/usr/local/vgpu/libvgpu.so"),
        Mount(host_path="/usr/local/vgpu/containers/1111_main", container_path="/usr/local/vgpu", read_only=False),
        Mount(host_path="/usr/local/vgpu/containers/1111_main", container_path="/tmp/vgpulock", read_only=False),
        Mount(host_path="/usr/local/vgpu/ld.so.preload", container_path="/etc/ld.so.preload"),
    )
    assert given.edits.device_nodes == ()
    assert given.directories == (Path("/usr/local/vgpu/containers/1111_main"),)


def recorded() -> list[Any]:
    """HAMi's recorded answers of Allocate in which it names the cards and limits them."""
    content = json.loads(VECTORS.read_text())["vectors"]
    chosen = [v for v in content if v["fn"].endswith(".Allocate") and (v["expected"].get("response") or {})]
    return [
        pytest.param(v, id=v["id"]) for v in chosen if "mounts" in v["expected"]["response"]["container_responses"][0]
    ]


@answers("nvidia_device_plugin", "NvidiaDevicePlugin.Allocate")
@pytest.mark.parametrize("vector", recorded())
def test_hamis_recorded_responses_come_out(vector: Mapping[str, Any], tmp_path: Path) -> None:
    pod = next(iter(vector["input"]["cluster"]["pods"].values()))
    pieces = [piece for piece in pod["annotations"]["hami.io/vgpu-devices-to-allocate"].split(";") if piece]
    responses = vector["expected"]["response"]["container_responses"]
    settings = NvidiaSettings(lib_cuda_log_level=0)
    for container, piece, response, asked in zip(
        pod["containers"], pieces, responses, vector["input"]["reqs"]["container_requests"], strict=True
    ):
        _, _, memory, cores = piece.rstrip(":").split(",")
        card = asked["devices_ids"][0].rpartition("-")[0]
        hook = Path(response["mounts"][0]["host_path"]).parent.parent
        given = assignment(
            share(card, int(memory), int(cores)), uid="abc", container=container["name"], env=container.get("env")
        )

        edits = inject(settings, given, host(tmp_path, hook=hook)).edits

        env = dict(edits.env)
        assert env.pop("CUDA_DEVICE_MEMORY_SHARED_CACHE").startswith(f"{hook / 'vgpu'}/")
        theirs = {key: text for key, text in response["envs"].items() if "CACHE" not in key}
        if not theirs["NVIDIA_VISIBLE_DEVICES"]:  # HAMi's test has no such card in its device map
            theirs["NVIDIA_VISIBLE_DEVICES"] = card
        assert env == theirs
        assert [
            (mount.container_path, mount.host_path.replace("/abc_", "/pod-uid_"), mount.read_only)
            for mount in edits.mounts
        ] == [
            (m["container_path"], _lock_of_its_own(m, response["mounts"]), m.get("read_only", False))
            for m in response["mounts"]
        ]


def _lock_of_its_own(mount: Mapping[str, Any], mounts: Sequence[Mapping[str, Any]]) -> str:
    """The host path of a recorded mount; HAMi's one lock for all containers is in each one's own folder here."""
    if mount["container_path"] == "/tmp/vgpulock":
        return str(next(m["host_path"] for m in mounts if "/containers/" in m["host_path"]))
    return str(mount["host_path"])


def test_a_repeated_allocation_gives_the_same_answer_and_another_container_another(tmp_path: Path) -> None:
    node = host(tmp_path)
    first, again = (inject(NvidiaSettings(), assignment(share("GPU-a")), node) for _ in range(2))
    other = inject(NvidiaSettings(), assignment(share("GPU-a"), container="side"), node)

    assert first == again
    key = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
    assert first.edits.env[key] != other.edits.env[key]


def test_limits_follow_the_order_in_which_the_container_sees_its_cards(tmp_path: Path) -> None:
    shares = (share("GPU-b", 5000, 50, index=3), share("GPU-a", 3000, 50, index=1))

    env = inject(NvidiaSettings(), assignment(*shares), host(tmp_path)).edits.env

    assert env["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert (env["CUDA_DEVICE_MEMORY_LIMIT_0"], env["CUDA_DEVICE_MEMORY_LIMIT_1"]) == ("3000m", "5000m")
    assert env["CUDA_DEVICE_SM_LIMIT"] == "50"
    assert "CUDA_DEVICE_SM_LIMIT_0" not in env


def test_each_card_has_its_own_core_limit_when_they_differ(tmp_path: Path) -> None:
    shares = (share("GPU-a", cores=30, index=0), share("GPU-b", cores=0, index=1), share("GPU-c", cores=70, index=2))

    env = inject(NvidiaSettings(), assignment(*shares), host(tmp_path)).edits.env

    assert env["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert [env[f"CUDA_DEVICE_SM_LIMIT_{i}"] for i in range(3)] == ["30", "100", "70"]


@pytest.mark.parametrize("scaling", [1.0, 2.0])
def test_a_grant_of_no_memory_is_all_that_the_card_has(scaling: float, tmp_path: Path) -> None:
    """Without a limit, or with 0, HAMi-core lets cuDeviceTotalMem say 0 bytes, and programs plan by that."""
    shares = (share("GPU-a", memory=0, index=0), share("GPU-b", memory=500, index=1))
    settings = NvidiaSettings(deviceMemoryScaling=scaling)

    env = inject(settings, assignment(*shares), host(tmp_path)).edits.env

    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "81920m"
    assert env["CUDA_DEVICE_MEMORY_LIMIT_1"] == "500m"


# What HAMi-core's builds say of the limits of cores, in their log. Builds with one limit for all cards are of before
# April 2026.
ONE_FOR_ALL = b"\0[HAMI-core Info(%d:%ld:%s:%d)]: set core utilization limit to  %d\n\0"
ONE_EACH = b"\0[HAMI-core Info(%d:%ld:%s:%d)]: device %d: core utilization limit = %d\n\0"


def differing(node: HostFiles, **settings: Any) -> Mapping[str, str]:
    shares = (share("GPU-a", cores=0, index=0), share("GPU-b", cores=30, index=1))
    return inject(NvidiaSettings(**settings), assignment(*shares), node).edits.env


def with_library(tmp_path: Path, content: bytes) -> HostFiles:
    node = host(tmp_path, "/usr/local/vgpu/libvgpu.so")
    node.seen("/usr/local/vgpu/libvgpu.so").write_bytes(b"\x7fELF" + bytes(300_000) + content + bytes(300_000))
    return node


def test_core_limits_that_differ_are_refused_where_the_library_knows_one_for_all_cards(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"0, 30.*one limit for all cards") as caught:
        differing(with_library(tmp_path, ONE_FOR_ALL))

    assert caught.value.reason is RefusalReason.NOT_PREPARED
    assert "April 2026" in caught.value.hint


@pytest.mark.parametrize("content", [ONE_EACH, ONE_EACH + ONE_FOR_ALL, b"", b"a library that says neither"])
def test_core_limits_that_differ_are_served_by_a_library_that_is_not_known_to_be_old(
    content: bytes, tmp_path: Path
) -> None:
    env = differing(with_library(tmp_path, content))

    assert (env["CUDA_DEVICE_SM_LIMIT_0"], env["CUDA_DEVICE_SM_LIMIT_1"]) == ("100", "30")


def test_an_old_library_serves_equal_core_limits_and_cards_whose_cores_are_not_limited_at_all(tmp_path: Path) -> None:
    node = with_library(tmp_path, ONE_FOR_ALL)
    equal = assignment(share("GPU-a", cores=30, index=0), share("GPU-b", cores=30, index=1))

    assert inject(NvidiaSettings(), equal, node).edits.env["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert differing(node, disableCoreLimit=True)["GPU_CORE_UTILIZATION_POLICY"] == "disable"


@pytest.mark.parametrize(
    ("options", "env"),
    [
        ({"deviceMemoryScaling": 1.5}, {"CUDA_OVERSUBSCRIBE": "true"}),
        ({"disableCoreLimit": True}, {"GPU_CORE_UTILIZATION_POLICY": "disable"}),
        ({"libCudaLogLevel": 4}, {"LIBCUDA_LOG_LEVEL": "4"}),
        ({"libCudaLogLevel": None}, {}),
        ({"gdrcopyEnabled": True}, {"NVIDIA_GDRCOPY": "enabled"}),
        ({"gdsEnabled": True, "mofedEnabled": True}, {"NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"}),
    ],
)
def test_an_option_adds_its_variable(options: Mapping[str, Any], env: Mapping[str, str], tmp_path: Path) -> None:
    plain = inject(NvidiaSettings(libCudaLogLevel=None), assignment(share("GPU-a")), host(tmp_path)).edits.env
    settings = NvidiaSettings.model_validate({"libCudaLogLevel": None, **options})

    chosen = inject(settings, assignment(share("GPU-a")), host(tmp_path)).edits.env

    assert chosen == {**plain, **env}


def test_cards_as_volume_mounts(tmp_path: Path) -> None:
    settings = NvidiaSettings(deviceListStrategy="envvar,volume-mounts")

    edits = inject(settings, assignment(share("GPU-a"), share("GPU-b", index=1)), host(tmp_path)).edits

    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    assert edits.mounts[:2] == tuple(
        Mount(host_path="/dev/null", container_path=f"/var/run/nvidia-container-devices/{name}", read_only=False)
        for name in ("GPU-a", "GPU-b")
    )


def test_device_nodes_are_those_that_exist_and_the_cards_by_minor(tmp_path: Path) -> None:
    node = host(tmp_path, "/dev/nvidiactl", "/dev/nvidia-uvm")

    edits = inject(NvidiaSettings(passDeviceSpecs=True), assignment(share("GPU-a", index=0, minor=7)), node).edits

    assert edits.device_nodes == (
        DeviceNode(path="/dev/nvidiactl", host_path="/dev/nvidiactl"),
        DeviceNode(path="/dev/nvidia-uvm", host_path="/dev/nvidia-uvm"),
        DeviceNode(path="/dev/nvidia7", host_path="/dev/nvidia7"),
    )
    assert {device.permissions for device in edits.device_nodes} == {"rw"}


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"nvidiaDriverRoot": "/run/nvidia/driver"}, "/run/nvidia/driver/dev/nvidia0"),
        ({"nvidiaDriverRoot": "/run/nvidia/driver", "nvidiaDevRoot": "/"}, "/dev/nvidia0"),
        ({"devRoot": "/sim/dev"}, "/sim/dev/nvidia0"),
    ],
)
def test_device_nodes_come_from_the_drivers_root(options: Mapping[str, str], path: str, tmp_path: Path) -> None:
    settings = NvidiaSettings.model_validate({"passDeviceSpecs": True, **options})

    edits = inject(settings, assignment(share("GPU-a")), host(tmp_path)).edits

    assert edits.device_nodes[-1] == DeviceNode(path="/dev/nvidia0", host_path=path)


def test_a_card_without_a_device_node_is_refused_when_nodes_are_passed(tmp_path: Path) -> None:
    card = share("GPU-a")
    unknown = Share(grant=card.grant, device=Device(uuid="GPU-a", family="NVIDIA", index=0, model="x", memory=1))

    with pytest.raises(RefusedError) as caught:
        inject(NvidiaSettings(passDeviceSpecs=True), assignment(unknown), host(tmp_path))

    assert caught.value.reason is RefusalReason.NOT_PREPARED


@pytest.mark.scenario("X8")
@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
def test_a_container_that_disables_control_gets_no_preload(text: str, tmp_path: Path) -> None:
    given = assignment(share("GPU-a"), env={"CUDA_DISABLE_CONTROL": text})

    mounts = inject(NvidiaSettings(), given, host(tmp_path)).edits.mounts

    assert "/etc/ld.so.preload" not in {mount.container_path for mount in mounts}


@pytest.mark.parametrize("text", ["", "0", "false", "yes", "tRuE", " true"])
def test_any_other_value_keeps_the_preload(text: str, tmp_path: Path) -> None:
    given = assignment(share("GPU-a"), env={"CUDA_DISABLE_CONTROL": text})

    mounts = inject(NvidiaSettings(), given, host(tmp_path)).edits.mounts

    assert "/etc/ld.so.preload" in {mount.container_path for mount in mounts}


def test_a_licence_brings_its_validator(tmp_path: Path) -> None:
    mounts = inject(
        NvidiaSettings(), assignment(share("GPU-a")), host(tmp_path, "/usr/local/vgpu/license")
    ).edits.mounts

    assert mounts[-2:] == (
        Mount(host_path="/usr/local/vgpu/license", container_path="/tmp/license"),
        Mount(host_path="/usr/local/vgpu/vgpuvalidator", container_path="/usr/bin/vgpuvalidator"),
    )


@pytest.mark.parametrize(
    ("uid", "container", "card"),
    [
        ("../../etc", "main", "GPU-a"),
        ("", "main", "GPU-a"),
        ("a" * 65, "main", "GPU-a"),
        ("1111", "../x", "GPU-a"),
        ("1111", "Main", "GPU-a"),
        ("1111", "a" * 64, "GPU-a"),
        ("1111", "main\n", "GPU-a"),
        ("1111", "main", "GPU-a/../b"),
        ("1111", "main", "all"),
        ("1111", "main", "GPU-a,GPU-b"),
    ],
)
@pytest.mark.scenario("X4")
def test_a_name_that_could_lead_elsewhere_is_refused(uid: str, container: str, card: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        inject(NvidiaSettings(), assignment(share(card), uid=uid, container=container), host(tmp_path))

    assert caught.value.reason is RefusalReason.INVALID_REQUEST
    assert caught.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("left", ["nothing", "directories"])
def test_a_host_without_hami_core_is_told_by_name_whatever_a_runtime_has_left_there(left: str, tmp_path: Path) -> None:
    node = host(tmp_path)
    if left == "directories":
        for name in ("libvgpu.so", "ld.so.preload"):
            node.seen(f"/usr/local/vgpu/{name}").mkdir(parents=True)

    problem = missing_library(NvidiaSettings(), node)

    assert "no file /usr/local/vgpu/libvgpu.so and no file /usr/local/vgpu/ld.so.preload on the host" in problem


def test_a_host_with_hami_core_lacks_nothing(tmp_path: Path) -> None:
    node = host(tmp_path, "/usr/local/vgpu/libvgpu.so.v2.10.0")
    node.seen("/usr/local/vgpu/ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")

    assert missing_library(NvidiaSettings(), node) == ""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/libvgpu.so"),
        ("", "no library"),
        ("# /opt/hami/vgpu/libvgpu.so\n", "no library"),
        ("/opt/hami/vgpu/libvgpu.so.v2.10.0\n", "/opt/hami/vgpu/libvgpu.so.v2.10.0"),
        ("/a.so:/b.so\n", "/a.so and /b.so"),
    ],
)
def test_a_preload_file_that_does_not_name_the_mounted_library_is_told_with_the_remedy(
    text: str, named: str, tmp_path: Path
) -> None:
    node = host(tmp_path, "/opt/hami/vgpu/libvgpu.so", hook=Path("/opt/hami"))
    node.seen("/opt/hami/vgpu/ld.so.preload").write_text(text)

    problem = missing_library(NvidiaSettings(), node)

    assert problem.startswith(f"/opt/hami/vgpu/ld.so.preload names {named}, and not /opt/hami/vgpu/libvgpu.so, ")
    assert "write that path into it" in problem


@pytest.mark.parametrize(
    "text",
    ["/x.so /opt/hami/vgpu/libvgpu.so", "/x.so:/opt/hami/vgpu/libvgpu.so # ours", "\n/opt/hami/vgpu/libvgpu.so\n"],
)
def test_the_mounted_library_may_be_one_of_several_that_are_preloaded(text: str, tmp_path: Path) -> None:
    node = host(tmp_path, "/opt/hami/vgpu/libvgpu.so", hook=Path("/opt/hami"))
    node.seen("/opt/hami/vgpu/ld.so.preload").write_text(text)

    assert missing_library(NvidiaSettings(), node) == ""


def test_a_card_that_is_granted_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="twice") as caught:
        inject(NvidiaSettings(), assignment(share("GPU-a"), share("GPU-a")), host(tmp_path))

    assert caught.value.reason is RefusalReason.BAD_ANNOTATION


@pytest.mark.scenario("X8")
@pytest.mark.parametrize("ways", [("cdi-annotations",), ("cdi-cri",), ("cdi-annotations", "cdi-cri")])
def test_with_cdi_alone_nothing_that_an_image_says_opens_cards_in_nvidias_runtime(
    ways: tuple[str, ...], tmp_path: Path
) -> None:
    settings = NvidiaSettings.model_validate({"deviceListStrategy": ways})

    edits = inject(settings, assignment(share("GPU-a")), host(tmp_path)).edits

    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert edits.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert edits.device_nodes == ()
    assert [mount.container_path for mount in edits.mounts][-1] == "/etc/ld.so.preload"


def test_beside_another_way_cdi_leaves_the_cards_names_for_runtimes_that_read_no_specs(tmp_path: Path) -> None:
    settings = NvidiaSettings.model_validate({"deviceListStrategy": "envvar,cdi-annotations"})

    env = inject(settings, assignment(share("GPU-a")), host(tmp_path)).edits.env

    assert env["NVIDIA_VISIBLE_DEVICES"] == "GPU-a"


def test_nodes_are_handed_over_beside_cdi_if_that_is_asked_for(tmp_path: Path) -> None:
    settings = NvidiaSettings.model_validate({"cdi": {"enabled": True}, "passDeviceSpecs": True})

    edits = inject(settings, assignment(share("GPU-a")), host(tmp_path)).edits

    assert [node.path for node in edits.device_nodes] == ["/dev/nvidia0"]


def test_what_a_former_start_leaves_is_the_file_that_the_environment_names_and_all_of_its_kind(tmp_path: Path) -> None:
    node = host(tmp_path)
    env = inject(NvidiaSettings(), assignment(share("GPU-a")), node).edits.env

    left = leftovers("1111", "main", node.paths)

    assert left.directory == Path("/usr/local/vgpu/containers/1111_main")
    assert left.names == (Path(env["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).name, "lock")
    assert left.suffix == ".cache"


@pytest.mark.parametrize(("uid", "container"), [("../../etc", "main"), ("1111", "../x"), ("", "main"), ("1111", "")])
def test_nothing_is_removed_by_a_name_that_could_lead_elsewhere(uid: str, container: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="not one that Kubernetes makes"):
        leftovers(uid, container, host(tmp_path).paths)
