"""Every NVIDIA profile, read back through the real binding, is the machine that was put in."""

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest

from hami_plugin.simulation.machines import machine_names
from tests.support.rigs import known
from vendors.nvidia.simulation import StateError, simulate

LEVELS = {"X": 0, "INT": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}


NVIDIA = [name for name in machine_names() if known(name).vendor == "nvidia"]


def test_there_are_twenty_one_nvidia_profiles():
    assert len(NVIDIA) == 21


def _lanes(binding, handles):
    """The link matrix as a driver has to find it: by peer for direct links, by the smaller count for switches."""
    ids = {binding.nvmlDeviceGetPciInfo(handle).busId: position for position, handle in enumerate(handles)}
    direct = [[0] * len(handles) for _ in handles]
    switched = [0] * len(handles)
    for here, handle in enumerate(handles):
        for link in range(36):
            try:
                if not binding.nvmlDeviceGetNvLinkState(handle, link):
                    continue
            except binding.NVMLError:
                break
            if binding.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == binding.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                switched[here] += 1
            else:
                direct[here][ids[binding.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId]] += 1
    return tuple(
        tuple(0 if a == b else direct[a][b] + min(switched[a], switched[b]) for b in range(len(handles)))
        for a in range(len(handles))
    )


@pytest.mark.parametrize("name", NVIDIA)
def test_the_binding_shows_the_machine(name, nvml, machine):
    expected = machine(name)
    simulator, binding = nvml(name)
    sysfs = Path(simulator.settings()["sysfsRoot"]) / "bus/pci/devices"

    assert binding.nvmlDeviceGetCount() == len(expected.devices)
    handles = [binding.nvmlDeviceGetHandleByIndex(index) for index in range(len(expected.devices))]
    for index, (handle, device) in enumerate(zip(handles, expected.devices, strict=True)):
        pci = binding.nvmlDeviceGetPciInfo(handle)
        bus_id = f"0000{device.pci}".upper() if len(device.pci.split(":")[0]) == 4 else device.pci.upper()
        folder = sysfs / pci.busId.lower().removeprefix("0000")
        assert binding.nvmlDeviceGetUUID(handle) == device.uuid
        assert binding.nvmlDeviceGetName(handle) == device.model
        assert binding.nvmlDeviceGetMinorNumber(handle) == device.minor
        assert binding.nvmlDeviceGetIndex(handle) == index
        assert binding.nvmlDeviceGetMemoryInfo(handle).total == device.memory << 20
        assert pci.busId == bus_id
        assert pci.busIdLegacy == bus_id.removeprefix("0000")
        assert pci.pciDeviceId == int(device.extra["pci_device_id"], 0)
        assert int((folder / "numa_node").read_text()) == device.numa
        assert binding.nvmlDeviceGetCudaComputeCapability(handle) == tuple(map(int, device.extra["cuda_cc"].split(".")))
        for text, find in (
            (device.uuid, binding.nvmlDeviceGetHandleByUUID),
            (device.pci, binding.nvmlDeviceGetHandleByPciBusId),
        ):
            assert binding.nvmlDeviceGetUUID(find(text.encode())) == device.uuid
    levels = tuple(tuple(binding.nvmlDeviceGetTopologyCommonAncestor(a, b) for b in handles) for a in handles)
    assert levels == tuple(tuple(LEVELS[level] for level in row) for row in expected.levels)
    assert _lanes(binding, handles) == expected.lanes


@pytest.mark.parametrize(("name", "switches"), [("dgx-a100-40gb", 6), ("dgx-h100", 4), ("dgx-2", 12), ("hgx-b200", 2)])
def test_switches_show_their_own_bus_ids(name, switches, nvml):
    _, binding = nvml(name)
    seen = {
        binding.nvmlDeviceGetNvLinkRemotePciInfo(binding.nvmlDeviceGetHandleByIndex(index), link).busId
        for index in range(binding.nvmlDeviceGetCount())
        for link in range(
            binding.nvmlDeviceGetFieldValues(binding.nvmlDeviceGetHandleByIndex(index), [91])[0].value.uiVal
        )
    }

    assert len(seen) == switches


def test_a_switch_that_the_hypervisor_hides_has_no_readable_bus_id(nvml):
    _, binding = nvml("azure-nd96asr-a100-v4")

    assert binding.nvmlDeviceGetNvLinkRemotePciInfo(binding.nvmlDeviceGetHandleByIndex(0), 0).busId == "FFFFFFF:FFFF:FF"


def test_ports_above_the_models_count_are_invalid_and_no_nvlink_is_not_supported(
    simulated, load, code, machine, tmp_path
):
    binding = load(simulated("dgx-1v"))
    binding.nvmlInit()
    handle = binding.nvmlDeviceGetHandleByIndex(0)

    assert code(binding.nvmlDeviceGetNvLinkState, handle, 5) == 0
    assert code(binding.nvmlDeviceGetNvLinkState, handle, 6) == 2
    assert binding.nvmlDeviceGetFieldValues(handle, [91])[0].value.uiVal == 6

    binding = load(simulate(machine("l40s-4-pcie"), tmp_path / "other"))
    binding.nvmlInit()
    handle = binding.nvmlDeviceGetHandleByIndex(0)

    assert code(binding.nvmlDeviceGetNvLinkState, handle, 0) == 3
    assert binding.nvmlDeviceGetFieldValues(handle, [91])[0].nvmlReturn == 3


def test_a_port_without_a_peer_is_down_and_has_no_remote(machine, load, code, tmp_path):
    spare = replace(machine("dgx-1v"), links_per_device=7)
    binding = load(simulate(spare, tmp_path / "spare"))
    binding.nvmlInit()
    handle = binding.nvmlDeviceGetHandleByIndex(0)

    assert [binding.nvmlDeviceGetNvLinkState(handle, link) for link in range(7)] == [1] * 6 + [0]
    assert code(binding.nvmlDeviceGetNvLinkRemotePciInfo, handle, 6) == 3


def test_minor_and_index_may_differ(machine, load, tmp_path):
    whole = machine("t4-4-pcie")
    turned = replace(whole, devices=tuple(replace(device, minor=3 - device.minor) for device in whole.devices))
    binding = load(simulate(turned, tmp_path / "turned"))
    binding.nvmlInit()

    minors = [binding.nvmlDeviceGetMinorNumber(binding.nvmlDeviceGetHandleByIndex(index)) for index in range(4)]

    assert minors == [3, 2, 1, 0]


def test_an_index_at_the_count_is_an_invalid_argument(nvml, code):
    _, binding = nvml("t4-4-pcie")

    assert code(binding.nvmlDeviceGetHandleByIndex, 4) == 2
    assert code(binding.nvmlDeviceGetHandleByUUID, b"GPU-none") == 6


def test_both_memory_structures_agree_and_a_wrong_version_is_refused(nvml, code):
    simulator, binding = nvml("dgx-h100")
    handle = binding.nvmlDeviceGetHandleByIndex(0)
    simulator.inject("used-memory", 0, 1024)

    first = binding.nvmlDeviceGetMemoryInfo(handle)
    second = binding.nvmlDeviceGetMemoryInfo(handle, version=binding.nvmlMemory_v2)

    assert second.used == 1024 << 20
    assert first.used == second.used + second.reserved
    assert first.total == second.total == first.used + first.free
    assert second.total == second.used + second.free + second.reserved
    assert code(binding.nvmlDeviceGetMemoryInfo, handle, 2) == 25


def test_short_buffers_are_refused(nvml):
    _, binding = nvml("dgx-h100")
    handle = binding.nvmlDeviceGetHandleByIndex(0)
    text = ctypes.create_string_buffer(96)

    assert binding.nvmlLib.nvmlDeviceGetUUID(handle, text, 40) == 7
    assert binding.nvmlLib.nvmlDeviceGetUUID(handle, text, 41) == 0
    assert binding.nvmlLib.nvmlDeviceGetName(handle, text, 4) == 7
    assert binding.nvmlLib.nvmlDeviceGetCpuAffinity(handle, 2, text) == 7


def test_affinity_masks_are_the_profiles_cpus_and_nodes(nvml):
    _, binding = nvml("dgx-h100")
    handle = binding.nvmlDeviceGetHandleByIndex(7)

    words = list(binding.nvmlDeviceGetCpuAffinity(handle, 4))
    found = {64 * position + bit for position, word in enumerate(words) for bit in range(64) if word >> bit & 1}

    assert found == set(range(56, 112)) | set(range(168, 224))
    assert list(binding.nvmlDeviceGetMemoryAffinity(handle, 1, 0)) == [2]


def test_grace_shows_its_own_memory_node_and_its_clique(nvml, code):
    _, binding = nvml("gb200-nvl72-tray")
    handle = binding.nvmlDeviceGetHandleByIndex(1)
    info = binding.c_nvmlGpuFabricInfoV_t()

    binding.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))

    assert binding.nvmlDeviceGetNumaNodeId(handle) == 10
    assert (info.state, info.cliqueId, info.clusterUuid[15]) == (3, 32766, 1)
    info.version = 1
    assert code(binding.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info)) == 25


def test_peer_access_follows_the_profile(nvml):
    _, binding = nvml("rtx4090-8-pcie")
    a, b = (binding.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))

    assert binding.nvmlDeviceGetP2PStatus(a, b, 0) == binding.NVML_P2P_STATUS_GPU_NOT_SUPPORTED
    assert binding.nvmlDeviceGetP2PStatus(a, b, 2) == binding.NVML_P2P_STATUS_NOT_SUPPORTED


def test_nvlink_is_a_peer_access_of_its_own(nvml):
    _, binding = nvml("dgx-1v")
    handles = [binding.nvmlDeviceGetHandleByIndex(index) for index in range(8)]

    found = [binding.nvmlDeviceGetP2PStatus(handles[0], other, 2) for other in handles[1:]]

    assert found == [0, 0, 0, 0, 5, 5, 5]


def test_nearest_gpus_are_those_at_the_level(nvml):
    _, binding = nvml("dgx-h100")
    first = binding.nvmlDeviceGetHandleByIndex(0)

    near = binding.nvmlDeviceGetTopologyNearestGpus(first, binding.NVML_TOPOLOGY_NODE)

    assert [binding.nvmlDeviceGetIndex(handle) for handle in near] == [1, 2, 3]


def test_a_folder_keeps_its_machine(simulated, machine, tmp_path):
    simulated("dgx-1v")

    with pytest.raises(StateError, match="holds another machine than dgx-2"):
        simulate(machine("dgx-2"), tmp_path / "machine")


def test_opening_a_folder_again_keeps_what_happened(nvml, machine, tmp_path, code):
    simulator, binding = nvml("dgx-1v")
    simulator.inject("lost", 3)

    simulate(machine("dgx-1v"), tmp_path / "machine")

    assert code(binding.nvmlDeviceGetHandleByIndex, 3) == 15
