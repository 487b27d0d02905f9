"""What the check holds hardware against is what the simulation is made of."""

import re
from pathlib import Path

import vendors.nvidia
from tools.gpu_check import claims, layout
from tools.gpu_check.claims import FILE, load
from tools.gpu_check.library import READS

PACKAGE = Path(vendors.nvidia.__file__).parent


def test_the_claims_are_those_of_the_headers_the_profiles_and_the_tables():
    assert FILE.read_text(encoding="utf-8") == claims.text(), "run: python -m tools.gpu_check.claims"


def test_the_sizes_are_those_that_drivers_are_known_to_have():
    structs = load().structs
    known = {"nvmlPciInfo_t": 68, "nvmlMemory_t": 24, "nvmlMemory_v2_t": 40, "nvmlEventData_t": 32}
    known |= {"nvmlGpuInstanceProfileInfo_t": 48, "nvmlGpuInstanceProfileInfo_v2_t": 152, "nvmlPlacement_t": 8}
    known |= {"nvmlGpuInstanceInfo_t": 24, "nvmlComputeInstanceProfileInfo_v2_t": 136, "nvmlComputeInstanceInfo_t": 32}
    known |= {"nvmlDeviceAttributes_t": 40, "nvmlUtilization_t": 8, "nvmlFieldValue_t": 40, "nvmlProcessInfo_t": 24}
    known |= {"nvmlGpuFabricInfo_v2_t": 36, "nvmlProcessUtilizationSample_t": 32}

    assert {name: structs[name]["size"] for name in known} == known
    assert structs["nvmlMemory_v2_t"]["word"] == 0x02000028
    assert structs["nvmlGpuInstanceProfileInfo_v2_t"]["word"] == 0x02000098


def test_every_structure_of_the_simulation_has_its_class_in_the_binding():
    assert set(layout.CLASSES) == set(load().structs)
    assert set(layout.WORDS) <= set(layout.CLASSES)


def test_the_type_of_every_answer_that_the_driver_reads_is_compared():
    """By the binding's names in the façade. A wait's event and what returns nothing are judged with the events.

    Only a card in MIG mode has MIG devices, and the check switches no mode.
    """
    asked = set(re.findall(r'\bask\("(nvml\w+)"', (PACKAGE / "nvml.py").read_text(encoding="utf-8")))
    compared = {question.function for question in (*layout.SYSTEM, *layout.OF_A_CARD)}
    elsewhere = {"nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByIndex", "nvmlDeviceRegisterEvents"}
    elsewhere |= {"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2"}
    of_mig_devices = {"nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId"}
    of_mig_devices |= {"nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo"}
    elsewhere |= of_mig_devices

    assert len(asked) > 15
    assert {name for name in asked if READS.fullmatch(name)} - compared - elsewhere == set()
