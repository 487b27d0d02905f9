/* What a device is: names, numbers, bus, cores, affinity. */
#include <stddef.h>
#include <string.h>

#include "mig.h"
#include "sim.h"

enum { COMPUTE_DEFAULT = 0, COMPUTE_EXCLUSIVE_THREAD = 1, COMPUTE_EXCLUSIVE_PROCESS = 3 };

static unsigned ordinal(uint32_t index)
{
    unsigned number = 0;
    for (uint32_t i = 0; i < index; i++)
        number += (unsigned)sim_present(i);
    return number;
}

/* Of these a MIG device answers most as its parent does. */
GETTER(nvmlDeviceGetArchitecture, device, unsigned, t.device->architecture);
GETTER(nvmlDeviceGetBrand, device, unsigned, t.device->brand);
GETTER(nvmlDeviceGetComputeMode, device, unsigned, t.device->mig_current ? COMPUTE_DEFAULT : t.device->compute_mode);
GETTER(nvmlDeviceGetIndex, device, unsigned, t.ci ? t.ci->slot : ordinal(t.index));
GETTER(nvmlDeviceGetMinorNumber, device, unsigned, t.device->minor);
GETTER(nvmlDeviceGetNumGpuCores, device, unsigned, sim_ci_share(t.device, t.ci, t.device->cores));
GETTER(nvmlDeviceGetPersistenceMode, device, unsigned, 1);

/* Support of one mode was removed. In MIG mode it stays as it is. */
API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t handle, unsigned mode)
{
    ENTER(gpu, handle, 1);
    REQUIRE(mode <= COMPUTE_EXCLUSIVE_PROCESS, NVML_INVALID_ARGUMENT);
    REQUIRE(mode != COMPUTE_EXCLUSIVE_THREAD && !t.device->mig_current, NVML_NOT_SUPPORTED);
    t.device->compute_mode = mode;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned length)
{
    ENTER(device, handle, uuid);
    return sim_text(t.ci ? t.ci->uuid : t.device->uuid, uuid, length);
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned length)
{
    ENTER(device, handle, name);
    char full[160];
    strcpy(full, t.device->name);
    if (t.ci) {
        strcat(full, " MIG ");
        strcat(full, t.device->profiles[t.gi->profile].name);
    }
    return sim_text(full, name, length);
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t handle, char *serial, unsigned length)
{
    ENTER(device, handle, 1);
    REQUIRE(t.device->serial[0], NVML_NOT_SUPPORTED);
    return sim_text(t.device->serial, serial, length);
}

/* The first two versions of the structure end before the long bus id: only what they share may be written. */
static nvmlReturn_t pci_info(const char *symbol, nvmlDevice_t handle, nvmlPciInfo_t *out, size_t size)
{
    ENTER_AS(symbol, device, handle, out);
    nvmlPciInfo_t info = {
        .domain = t.device->pci_domain,
        .bus = t.device->pci_bus,
        .device = t.device->pci_slot,
        .pciDeviceId = t.device->pci_device_id,
        .pciSubSystemId = t.device->pci_subsystem_id,
    };
    memcpy(info.busIdLegacy, t.device->bus_id_legacy, sizeof info.busIdLegacy);
    memcpy(info.busId, t.device->bus_id, sizeof info.busId);
    memcpy(out, &info, size);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *out)
{
    return pci_info(__func__, handle, out, sizeof *out);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_t *out)
{
    return pci_info("nvmlDeviceGetPciInfo_v3", handle, out, offsetof(nvmlPciInfo_t, busId));
}
ALIAS(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v2);

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor)
{
    ENTER(device, handle, major && minor);
    *major = (int)t.device->capability_major;
    *minor = (int)t.device->capability_minor;
    return NVML_SUCCESS;
}

/* The NUMA node that the GPU's own memory forms (Grace), not the one it is near to. */
API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t handle, unsigned *node)
{
    ENTER(device, handle, node);
    REQUIRE(t.device->memory_node >= 0, NVML_NOT_SUPPORTED);
    *node = (unsigned)t.device->memory_node;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t handle, nvmlDeviceAddressingMode_t *mode)
{
    ENTER(device, handle, mode);
    REQUIRE_VERSION(mode, nvmlDeviceAddressingMode_t, 1);
    mode->value = t.device->addressing;
    return NVML_SUCCESS;
}

/* A bit mask of words 64-bit words. All of it must fit; nothing known at all is NotSupported. */
static nvmlReturn_t mask(const uint64_t *bits, unsigned words, unsigned size, uint64_t *out)
{
    unsigned used = 0;
    for (unsigned i = 0; i < words; i++)
        if (bits[i])
            used = i + 1;
    REQUIRE(out && size, NVML_INVALID_ARGUMENT);
    REQUIRE(used, NVML_NOT_SUPPORTED);
    REQUIRE(used <= size, NVML_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < size; i++)
        out[i] = i < words ? bits[i] : 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t handle, unsigned size, uint64_t *set)
{
    ENTER(device, handle, set);
    return mask(t.device->cpus, 16, size, set);
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t handle, unsigned size, uint64_t *set, unsigned scope)
{
    ENTER(device, handle, set);
    REQUIRE(scope <= 1, NVML_INVALID_ARGUMENT);
    return mask(t.device->nodes, 2, size, set);
}
