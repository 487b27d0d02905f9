from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hami_plugin.cli.tables import device_table, topology_matrix
from hami_plugin.model.device import Device, Health, Link, Links, Snapshot

Profile = Callable[[str], Snapshot]

CUBE_MESH_TABLE = """\
INDEX  UUID                                      MODEL                    MEMORY  NUMA  PCI           HEALTH
    0  GPU-00000000-5150-4ccd-8a11-751c31b00000  Tesla V100-SXM2-32GB  32768 MiB     0  0000:06:00.0  healthy
    1  GPU-00000001-5150-4ccd-8a11-751c31b00001  Tesla V100-SXM2-32GB  32768 MiB     0  0000:07:00.0  healthy
    2  GPU-00000002-5150-4ccd-8a11-751c31b00002  Tesla V100-SXM2-32GB  32768 MiB     0  0000:0a:00.0  healthy
    3  GPU-00000003-5150-4ccd-8a11-751c31b00003  Tesla V100-SXM2-32GB  32768 MiB     0  0000:0b:00.0  healthy
    4  GPU-00000004-5150-4ccd-8a11-751c31b00004  Tesla V100-SXM2-32GB  32768 MiB     1  0000:85:00.0  healthy
    5  GPU-00000005-5150-4ccd-8a11-751c31b00005  Tesla V100-SXM2-32GB  32768 MiB     1  0000:86:00.0  healthy
    6  GPU-00000006-5150-4ccd-8a11-751c31b00006  Tesla V100-SXM2-32GB  32768 MiB     1  0000:89:00.0  healthy
    7  GPU-00000007-5150-4ccd-8a11-751c31b00007  Tesla V100-SXM2-32GB  32768 MiB     1  0000:8a:00.0  healthy
"""

CUBE_MESH = """\
      GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7  NUMA
GPU0     X   NV1   NV1   NV2   NV2   SYS   SYS   SYS     0
GPU1   NV1     X   NV2   NV1   SYS   NV2   SYS   SYS     0
GPU2   NV1   NV2     X   NV2   SYS   SYS   NV1   SYS     0
GPU3   NV2   NV1   NV2     X   SYS   SYS   SYS   NV1     0
GPU4   NV2   SYS   SYS   SYS     X   NV1   NV1   NV2     1
GPU5   SYS   NV2   SYS   SYS   NV1     X   NV2   NV1     1
GPU6   SYS   SYS   NV1   SYS   NV1   NV2     X   NV2     1
GPU7   SYS   SYS   SYS   NV1   NV2   NV1   NV2     X     1

  X     the device itself
  NV#   # fabric links
  SYS   the link between NUMA nodes

Pair scores
      GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7
GPU0     X   150   130   230   210    10    10    10
GPU1   150     X   230   130    10   210    10    10
GPU2   130   230     X   250    10    10   110    10
GPU3   230   130   250     X    10    10    10   110
GPU4   210    10    10    10     X   150   130   230
GPU5    10   210    10    10   150     X   230   130
GPU6    10    10   110    10   130   230     X   250
GPU7    10    10    10   110   230   130   250     X
"""

SWITCHED = """\
      GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7  NUMA
GPU0     X  NV18  NV18  NV18  NV18  NV18  NV18  NV18     0
GPU1  NV18     X  NV18  NV18  NV18  NV18  NV18  NV18     0
GPU2  NV18  NV18     X  NV18  NV18  NV18  NV18  NV18     0
GPU3  NV18  NV18  NV18     X  NV18  NV18  NV18  NV18     0
GPU4  NV18  NV18  NV18  NV18     X  NV18  NV18  NV18     1
GPU5  NV18  NV18  NV18  NV18  NV18     X  NV18  NV18     1
GPU6  NV18  NV18  NV18  NV18  NV18  NV18     X  NV18     1
GPU7  NV18  NV18  NV18  NV18  NV18  NV18  NV18     X     1

  X     the device itself
  NV#   # fabric links

Pair scores
      GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7
GPU0     X  1820  1820  1820  1810  1810  1810  1810
GPU1  1820     X  1820  1820  1810  1810  1810  1810
GPU2  1820  1820     X  1820  1810  1810  1810  1810
GPU3  1820  1820  1820     X  1810  1810  1810  1810
GPU4  1810  1810  1810  1810     X  1820  1820  1820
GPU5  1810  1810  1810  1810  1820     X  1820  1820
GPU6  1810  1810  1810  1810  1820  1820     X  1820
GPU7  1810  1810  1810  1810  1820  1820  1820     X
"""


def test_devices_are_listed_one_a_line(snapshot: Profile):
    assert device_table(snapshot("dgx-1v")) + "\n" == CUBE_MESH_TABLE


def test_a_cube_mesh_shows_its_single_and_double_links(snapshot: Profile):
    assert topology_matrix(snapshot("dgx-1v"), "GPU") + "\n" == CUBE_MESH


def test_behind_a_switch_all_labels_are_equal_and_scores_tell_the_sockets_apart(snapshot: Profile):
    assert topology_matrix(snapshot("dgx-h100"), "GPU") + "\n" == SWITCHED


def test_a_device_that_is_not_well_says_why(snapshot: Profile):
    whole = snapshot("dgx-1v")
    lost = replace(whole.devices[3], health=Health.UNHEALTHY, reason="GpuLost", message="XID 79")
    told = device_table(replace(whole, devices=(*whole.devices[:3], lost, *whole.devices[4:])))

    assert [line for line in told.splitlines() if "unhealthy (GpuLost: XID 79)" in line] == [told.splitlines()[4]]


def test_a_driver_that_is_away_is_named_above_what_was_seen_last(snapshot: Profile):
    away = replace(snapshot("dgx-1v"), ready=False, reason="NoDriver", message="the kernel module is not loaded")

    assert device_table(away) == (
        "not ready: NoDriver: the kernel module is not loaded\n" + device_table(snapshot("dgx-1v"))
    )


def test_a_machine_without_devices_says_so():
    assert device_table(Snapshot(ready=True)) == "no devices"
    assert device_table(Snapshot()) == "not ready: NotLookedYet\nno devices"
    assert topology_matrix(Snapshot(), "GPU") == "no devices"


def test_an_odd_pair_an_unmeasured_one_and_problems_are_pointed_out():
    devices = tuple(
        Device(uuid=uuid, family="npu", index=i, model="M", memory=1, numa=None)
        for i, uuid in enumerate(("NPU-a", "b", "c"))
    )
    links = Links(
        pairs={("NPU-a", "b"): Link(score=310, label="NV3"), ("NPU-a", "c"): Link(score=10, label="SYS")},
        asymmetric=(("NPU-a", "b"),),
        problems=("pair b, c: the driver did not answer",),
    )

    assert topology_matrix(Snapshot(devices=devices, links=links, ready=True), "NPU").splitlines() == [
        "      NPU0  NPU1  NPU2  NUMA",
        "NPU0     X  NV3*   SYS     -",
        "NPU1  NV3*     X     -     -",
        "NPU2   SYS     -     X     -",
        "",
        "  X     the device itself",
        "  NV#   # fabric links",
        "  SYS   the link between NUMA nodes",
        "  -     not measured",
        "",
        "Pair scores",
        "      NPU0  NPU1  NPU2",
        "NPU0     X  310*    10",
        "NPU1  310*     X     0",
        "NPU2    10     0     X",
        "",
        "* NPU0 and NPU1: the directions differ, the worse one counts",
        "! pair b, c: the driver did not answer",
    ]


def test_a_matrix_that_is_wider_than_the_terminal_goes_on_below(snapshot: Profile):
    whole = topology_matrix(snapshot("dgx-2"), "GPU")
    folded = topology_matrix(snapshot("dgx-2"), "GPU", 80)

    def cells(text: str) -> list[str]:
        return sorted(word for line in text.split("Pair scores")[1].splitlines() for word in line.split())

    assert max(map(len, whole.splitlines())) > 80
    assert max(map(len, folded.splitlines())) <= 80
    assert [line for line in folded.splitlines() if line.endswith("NUMA")], "the last part has the NUMA nodes"
    rows_again = [f"GPU{index}" for index in range(16)]
    assert cells(folded) == sorted([*cells(whole), *rows_again])


def test_a_matrix_that_fits_is_not_folded(snapshot: Profile):
    assert topology_matrix(snapshot("dgx-1v"), "GPU", 80) == topology_matrix(snapshot("dgx-1v"), "GPU")


def test_a_terminal_narrower_than_any_column_still_shows_every_pair(snapshot: Profile):
    folded = topology_matrix(snapshot("dgx-1v"), "GPU", 1)

    assert folded.count("GPU7") >= 8
