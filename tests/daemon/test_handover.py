"""``auto``: which way is chosen from which runtime's configuration, and what is said of it at the start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from hami_plugin.config.settings import Settings
from hami_plugin.config.vendors import ServedSettings, VendorSettings
from hami_plugin.daemon.startup import Handover, ServedVendor, decide_handover, report_handover, tidy_specs
from hami_plugin.model.delivery import Way
from hami_plugin.sdk import load_vendor

CRI = '[plugins."io.containerd.grpc.v1.cri"]\n'
SILENT = f"version = 2\n{CRI}sandbox_image = 'pause'\n"
ON = f"version = 2\n{CRI}enable_cdi = true\n"
OFF = f"version = 2\n{CRI}enable_cdi = false\n"


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def decided(runtime: Path, text: str | None, strategy: str = "auto", **own: Any) -> Handover:
    """How devices are handed over under a runtime with the configuration ``text``; None: there is none."""
    if text is not None:
        runtime.write_text(text)
    settings = Settings.model_validate({"nodeName": "n", "runtimeConfig": runtime, **own})
    chosen, handover = decide_handover(ServedSettings.model_validate({"deviceListStrategy": strategy}), settings)
    assert isinstance(chosen, ServedSettings)
    assert handover is not None
    assert chosen.delivery.ways == handover.ways
    assert not chosen.automatic
    return handover


@pytest.mark.parametrize("text", [ON, "version = 3\n"])
def test_auto_takes_cdi_where_the_runtime_reads_our_directory_and_says_where_that_stands(
    runtime: Path, text: str
) -> None:
    handover = decided(runtime, text)

    assert handover.ways == (Way.CDI_ANNOTATIONS,)
    assert str(runtime) in handover.why
    assert handover.ignored == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SILENT, "does not say enable_cdi = true"),
        (OFF, "enable_cdi is off"),
        ("not toml [", "cannot be read"),
        (None, "no container runtime's configuration was found at"),
    ],
)
def test_auto_takes_the_plain_way_where_cdi_is_not_known_to_work(runtime: Path, text: str | None, words: str) -> None:
    handover = decided(runtime, text)

    assert handover.ways == (Way.DEVICE_SPECS,)
    assert words in handover.why
    assert str(runtime) in handover.why
    assert handover.ignored == ""


def test_auto_does_not_write_where_the_runtime_does_not_look(runtime: Path) -> None:
    handover = decided(runtime, ON, cdiDirs=["/etc/cdi", "/opt/cdi"])

    assert handover.ways == (Way.DEVICE_SPECS,)
    assert "but not from /opt/cdi" in handover.why


def test_a_way_that_was_configured_stays_and_nothing_is_said_against_it(runtime: Path) -> None:
    assert decided(runtime, ON, "cdi-cri") == Handover(ways=(Way.CDI_CRI,), why="as configured")
    assert decided(runtime, OFF, "device-specs") == Handover(ways=(Way.DEVICE_SPECS,), why="as configured")


@pytest.mark.parametrize("text", [None, "not toml ["])
def test_where_nothing_is_known_of_the_runtime_nothing_is_said_against_cdi(runtime: Path, text: str | None) -> None:
    assert decided(runtime, text, "cdi-cri").ignored == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (SILENT, 'set enable_cdi = true under [plugins."io.containerd.grpc.v1.cri"]'),
        (OFF, 'set enable_cdi = true under [plugins."io.containerd.grpc.v1.cri"]'),
        ("[plugins.cri]\n", 'set enable_cdi = true under [plugins."cri"]'),
        (
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n",
            'set enable_cdi = true under [plugins."io.containerd.cri.v1.runtime"]',
        ),
        ("[crio.runtime]\ncdi_spec_dirs = []\n", "remove cdi_spec_dirs = [] from [crio.runtime]"),
    ],
)
def test_cdi_that_the_runtime_ignores_is_said_with_the_file_and_the_line(runtime: Path, text: str, line: str) -> None:
    handover = decided(runtime, text, "cdi-annotations")

    assert handover.ways == (Way.CDI_ANNOTATIONS,)
    assert f"{line} in {runtime}" in handover.ignored


def test_a_runtime_that_looks_elsewhere_is_said_with_the_directories(runtime: Path) -> None:
    text = f'{ON}cdi_spec_dirs = ["/etc/cdi"]\n'

    assert "but only from /etc/cdi; add /var/run/cdi to its cdi_spec_dirs" in decided(runtime, text, "cdi-cri").ignored


def test_a_vendor_without_a_node_side_hands_nothing_over(runtime: Path) -> None:
    settings = Settings.model_validate({"nodeName": "n", "runtimeConfig": runtime})

    assert decide_handover(VendorSettings(), settings) == (VendorSettings(), None)


class Told:
    """The Events about the node, in place of a recorder's queue."""

    def __init__(self) -> None:
        self.node_events: list[tuple[str, str]] = []

    def node(self, reason: str, message: str) -> None:
        self.node_events.append((reason, message))


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    structlog.reset_defaults()
    with capture_logs() as lines:
        yield lines


def served(handover: Handover | None) -> ServedVendor:
    vendor = load_vendor("nvidia")
    return ServedVendor(vendor=vendor, settings=vendor.settings(), driver=None, handover=handover)  # type: ignore[arg-type]  # not asked


def test_the_start_says_by_which_way_and_why(logged: list[Any]) -> None:
    told = Told()

    report_handover([served(Handover(ways=(Way.ENVVAR, Way.CDI_CRI), why="as configured"))], told)  # type: ignore[arg-type]  # the one method that is used

    (line,) = logged
    assert line["event"] == "devices are handed over"
    assert (line["by"], line["why"]) == ("envvar, cdi-cri", "as configured")
    assert told.node_events == []


def test_the_start_says_what_the_runtime_ignores_in_the_log_and_at_the_node(logged: list[Any]) -> None:
    told = Told()
    handover = Handover(ways=(Way.CDI_CRI,), why="as configured", ignored="set it in /etc/x")

    report_handover([served(handover), served(None)], told)  # type: ignore[arg-type]  # the one method that is used

    assert [line["log_level"] for line in logged] == ["info", "warning"]
    assert logged[1]["why"] == "set it in /etc/x"
    assert told.node_events == [("CDISwitchedOff", "set it in /etc/x")]


def test_specs_of_kinds_that_are_served_no_more_go_and_others_files_stay(tmp_path: Path, logged: list[Any]) -> None:
    for name in ("hami-plugin_hami.io-gpu.json", "hami-plugin_hami.io-npu.json", "foreign.json"):
        (tmp_path / name).write_text("{}")

    tidy_specs(tmp_path, [])
    assert len(list(tmp_path.iterdir())) == 3
    tidy_specs(tmp_path, ["hami.io/gpu"])

    assert {path.name for path in tmp_path.iterdir()} == {"hami-plugin_hami.io-gpu.json", "foreign.json"}
    assert logged[-1]["files"] == ("hami-plugin_hami.io-npu.json",)


def test_a_directory_that_cannot_be_tidied_is_said_and_stops_nobody(tmp_path: Path, logged: list[Any]) -> None:
    file = tmp_path / "file"
    file.touch()

    tidy_specs(file, ["hami.io/gpu"])

    assert logged[-1]["event"] == "cdi directory not tidied"
