"""nvidia-ctk in the place of our own description: a program on PATH that behaves well, badly, or not at all."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from vendors.nvidia import VENDOR
from vendors.nvidia.host import DiscoveredInstance
from vendors.nvidia.injection import specification
from vendors.nvidia.settings import NvidiaSettings

HOST = HostFiles(paths=HostPaths())
KIND = "k8s.device-plugin.nvidia.com/gpu"
SETTINGS = NvidiaSettings.model_validate({"cdi": {"enabled": True, "generator": "nvidia-ctk"}})
MIG = DiscoveredInstance(uuid="MIG-x", index=2, gi=1, ci=0)


def card(uuid: str, index: int, *cut: DiscoveredInstance) -> Device:
    return Device(uuid=uuid, family="NVIDIA", index=index, model="", memory=1, minor=index, traits=cut or None)


def document(*names: str, **changes: Any) -> str:
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{i}"}]}} for i, name in enumerate(names)
    ]
    return json.dumps(
        {
            "cdiVersion": "0.5.0",
            "kind": KIND,
            "devices": devices,
            "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
            **changes,
        }
    )


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a program of that name, which notes its arguments."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def install(body: str) -> Path:
        program = tmp_path / "bin/nvidia-ctk"
        program.parent.mkdir(exist_ok=True)
        notes = tmp_path / "arguments"
        program.write_text(
            f"#!{sys.executable}\nimport sys, time\nopen({str(notes)!r}, 'w').write(' '.join(sys.argv[1:]))\n{body}\n"
        )
        program.chmod(0o755)
        return notes

    return install


def test_its_description_is_taken_under_our_names(tool: Any) -> None:
    tool(f"print({document('GPU-a', 'GPU-b', 'MIG-x', 'GPU-hidden', 'all')!r})")

    spec = specification(SETTINGS, (card("GPU-a", 0), card("GPU-b", 1)), HOST)

    assert {device.name: [node.path for node in device.edits.device_nodes] for device in spec.devices} == {
        "GPU-a": ["/dev/nvidia0"],
        "0": ["/dev/nvidia0"],
        "GPU-b": ["/dev/nvidia1"],
        "1": ["/dev/nvidia1"],
        "all": ["/dev/nvidia0", "/dev/nvidia1"],
    }
    assert (str(spec.kind), spec.edits.env) == (KIND, {"NVIDIA_VISIBLE_DEVICES": "void"})


def test_a_card_that_is_cut_is_described_by_its_instances(tool: Any) -> None:
    tool(f"print({document('MIG-x', 'GPU-b')!r})")

    spec = specification(SETTINGS, (card("GPU-a", 0, MIG), card("GPU-b", 1)), HOST)

    assert {device.name: [node.path for node in device.edits.device_nodes] for device in spec.devices} == {
        **{name: ["/dev/nvidia0"] for name in ("GPU-a", "0", "MIG-x", "0:2")},
        **{name: ["/dev/nvidia1"] for name in ("GPU-b", "1")},
        "all": ["/dev/nvidia0", "/dev/nvidia1"],
    }


def test_it_is_asked_for_json_under_our_kind_and_root(tool: Any) -> None:
    notes = tool(f"print({document('GPU-a')!r})")
    settings = SETTINGS.model_copy(update={"nvidia_driver_root": Path("/run/nvidia/driver")})

    specification(settings, (card("GPU-a", 0),), HOST)

    assert notes.read_text() == (
        "cdi generate --format json --vendor k8s.device-plugin.nvidia.com --class gpu --device-name-strategy uuid"
        " --driver-root /run/nvidia/driver"
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.exit('failed to initialize NVML')", "ended with status 1: failed to initialize NVML"),
        ("sys.exit(3)", "ended with status 3: no message"),
        ("print('no json')", "no runtime would read"),
        (f"print({document('GPU-a', cdiVersion='0.2.0')!r})", "no runtime would read"),
        (f"print({document('GPU-a', kind='nvidia.com/gpu')!r})", "describes nvidia.com/gpu, and was asked for"),
        (f"print({document('GPU-b')!r})", "does not describe GPU-a"),
    ],
)
def test_what_is_wrong_with_it_is_told_with_the_remedy(tool: Any, body: str, words: str) -> None:
    tool(body)

    with pytest.raises(HamiError, match=words) as caught:
        specification(SETTINGS, (card("GPU-a", 0),), HOST)

    assert "the daemon's own description is used" in str(caught.value)


def test_a_tool_that_hangs_is_given_up(tool: Any) -> None:
    tool("time.sleep(60)")

    with pytest.raises(HamiError, match=r"has not answered within 0\.3 s"):
        specification(SETTINGS, (card("GPU-a", 0),), HOST, deadline_s=0.3)


def test_a_tool_that_hangs_is_ended_with_its_children(tool: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    tool(f"import os; keep = open({str(pipe)!r}, 'w'); os.fork(); time.sleep(60)")

    with pytest.raises(HamiError, match=r"has not answered within 3 s"):
        specification(SETTINGS, (card("GPU-a", 0),), HOST, deadline_s=3.0)

    assert os.read(reader, 1) == b"", "nobody has the other end any more"
    os.close(reader)


def test_of_much_that_it_says_the_end_is_told_where_the_error_stands(tool: Any) -> None:
    tool("print('warning: not found\\n' * 100, file=sys.stderr); sys.exit('no driver')")

    with pytest.raises(HamiError, match=r"ended with status 1: ….*warning: not found no driver"):
        specification(SETTINGS, (card("GPU-a", 0),), HOST)


def test_a_tool_that_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(HamiError, match="nvidia-ctk is not installed here"):
        specification(SETTINGS, (card("GPU-a", 0),), HOST)


def test_a_program_that_cannot_be_run_is_told(tool: Any, tmp_path: Path) -> None:
    tool("")
    (tmp_path / "bin/nvidia-ctk").write_text("#!/no/such/interpreter\n")

    with pytest.raises(HamiError, match="cannot be run"):
        specification(SETTINGS, (card("GPU-a", 0),), HOST)


def test_the_family_uses_it_only_if_it_is_chosen(tool: Any) -> None:
    tool(f"print({document('GPU-a')!r})")
    (chosen,), (usual,) = VENDOR.families(SETTINGS), VENDOR.families(NvidiaSettings())

    assert usual.node.specification is None
    assert chosen.node.specification is not None
    assert [device.name for device in chosen.node.specification((card("GPU-a", 0),), HOST).devices] == [
        "GPU-a",
        "0",
        "all",
    ]
