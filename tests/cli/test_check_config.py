"""``hami-plugin run --check-config``: what a pipeline asks before it rolls a configuration out."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from hami_plugin.cli.main import main


def check(*options: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["run", "--check-config", "--node-name", "n1", *map(str, options)])
    return result.exit_code, result.output


def test_all_mistakes_of_all_files_are_listed_by_file_and_line(tmp_path: Path) -> None:
    own, hami, node = (tmp_path / name for name in ("config.yaml", "device-config.yaml", "config.json"))
    own.write_text("rescanSecond: 3\nlogLevel: loud\nvendors:\n  nvidia:\n    deviceSplitCount: -1\n")
    hami.write_text("nvidia:\n  deviceMemoryScaling: lots\n")
    node.write_text('{"nodeconfig": 3}')

    status, output = check("--config", own, "--device-config", hami, "--node-config", node)

    assert status == 1
    for place in (
        f"{own}:1: rescanSecond",
        f"{own}:2: logLevel",
        f"{own}:5: vendors.nvidia.deviceSplitCount",
        f"{node}: has no list",
    ):
        assert place in output, output
    assert f"{hami}:2: nvidia.deviceMemoryScaling" in output


def test_a_valid_configuration_is_status_0_with_its_warnings(tmp_path: Path) -> None:
    own, hami = tmp_path / "config.yaml", tmp_path / "device-config.yaml"
    own.write_text("rescanSeconds: 3\n")
    hami.write_text("sharing: {}\n")

    status, output = check("--config", own, "--device-config", hami)

    assert status == 0
    assert f"warning: {hami}:1: sharing" in output
    assert f"is valid: {own}, {hami}" in output
