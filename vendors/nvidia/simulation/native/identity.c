/* What a device is: names, numbers, bus, memory, cores, affinity. */
#include <stddef.h>
#include <string.h>

#include "sim.h"

/* One number of one device; a MIG device answers too, as its parent does. */
#define GETTER(function, type, expression)                               \
    API nvmlReturn_t function(nvmlDevice_t handle, type *out)            \
    {                                                                    \
        sim_target t;                                                    \
        nvmlReturn_t code = sim_enter(__func__, handle, &t);             \
        if (!code && !out)                                               \
            code = NVML_INVALID_ARGUMENT;                                \
        if (!code)                                                       \
            *out = (type)(expression);                                   \
        return sim_end(code);                                            \
    }                                                                    \
    _Static_assert(1, "a semicolon follows")

static unsigned ordinal(uint32_t index)
{
    unsigned number = 0;
    for (uint32_t i = 0; i < index; i++)
        number += (unsigned)sim_present(i);
    return number;
}

GETTER(nvmlDeviceGetArchitecture, unsigned, t.device->architecture);
GETTER(nvmlDeviceGetBrand, unsigned, t.device->brand);
GETTER(nvmlDeviceGetComputeMode, unsigned, 0);
GETTER(nvmlDeviceGetIndex, unsigned, t.ci ? t.ci->slot : ordinal(t.index));
GETTER(nvmlDeviceGetMinorNumber, unsigned, t.device->minor);
GETTER(nvmlDeviceGetNumGpuCores, unsigned, sim_ci_share(t.device, t.ci, t.device->cores));
GETTER(nvmlDeviceGetPersistenceMode, unsigned, 1);

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned length)
{
    sim_target t;
    nvmlReturn_t code = sim_enter(__func__, handle, &t);
    return sim_end(code ? code : sim_text(t.ci ? t.ci->uuid : t.device->uuid, uuid, length));
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned length)
{
    sim_target t;
    nvmlReturn_t code = sim_enter(__func__, handle, &t);
    if (code)
        return sim_end(code);
    char full[160];
    strcpy(full, t.device->name);
    if (t.ci) {
        strcat(full, " MIG ");
        strcat(full, t.device->profiles[t.gi->profile].name);
    }
    return sim_end(sim_text(full, name, length));
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t handle, char *serial, unsigned length)
{
    sim_target t;
    nvmlReturn_t code = sim_enter(__func__, handle, &t);
    if (!code && !t.device->serial[0])
        code = NVML_NOT_SUPPORTED;
    return sim_end(code ? code : sim_text(t.device->serial, serial, length));
}

/* The first two versions of the structure end before the long bus id: only what they share may be written. */
static nvmlReturn_t pci_info(const char *symbol, nvmlDevice_t handle, nvmlPciInfo_t *out, size_t size)
{
    sim_target t;
    nvmlReturn_t code = sim_enter(symbol, handle, &t);
    if (!code && !out)
        code = NVML_INVALID_ARGUMENT;
    if (code)
        return sim_end(code);
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
    return sim_end(NVML_SUCCESS);
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
    sim_target t;
    nvmlReturn_t code = sim_enter(__func__, handle, &t);
    if (!code && (!major || !minor))
        code = NVML_INVALID_ARGUMENT;
    if (!code) {
        *major = (int)t.device->capability_major;
        *minor = (int)t.device->capability_minor;
    }
    return sim_end(code);
}

/* The NUMA node that the GPU's own memory forms (Grace), not the one it is near to. */
API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t handle, unsigned *node)
{
    sim_target t;
    nvmlReturn_t code = sim_enter(__func__, handle, &t);
    if (!code && !node)
        code = NVML_INVALID_ARGUMENT;
    if (!code && t.device->memory_node < 0)
        code = NVML_NOT_SUPPORTED;
    if (!code)
        *node = (unsigned)t.device->memory_node;
    return sim_end(code);
}

API nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t handle, nvmlDeviceAddressingMode_t *mode)
{
    sim_target t;
    nvmlReturn_t code = sim_enter(__func__, handle, &t);
    if (!code && !mode)
        code = NVML_INVALID_ARGUMENT;
    if (!code && mode->version != STRUCT_VERSION(nvmlDeviceAddressingMode_t, 1))
        code = NVML_ARGUMENT_VERSION_MISMATCH;
    if (!code)
        mode->value = t.device->addressing;
    return sim_end(code);
}

/* A bit mask of words 64-bit words. All of it must fit; nothing known at all is NotSupported. */
static nvmlReturn_t mask(const uint64_t *bits, unsigned words, unsigned size, uint64_t *out)
{
    unsigned used = 0;
    for (unsigned i = 0; i < words; i++)
        if (bits[i])
            used = i + 1;
    if (!out || size == 0)
        return NVML_INVALID_ARGUMENT;
    if (used == 0)
        return NVML_NOT_SUPPORTED;
    if (size < used)
        return NVML_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < size; i++)
        out[i] = i < words ? bits[i] : 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t handle, unsigned size, uint64_t *set)
{
    sim_target t;
    nvmlReturn_t code = sim_enter(__func__, handle, &t);
    return sim_end(code ? code : mask(t.device->cpus, 16, size, set));
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t handle, unsigned size, uint64_t *set, unsigned scope)
{
    sim_target t;
    nvmlReturn_t code = sim_enter(__func__, handle, &t);
    if (!code && scope > 1)
        code = NVML_INVALID_ARGUMENT;
    return sim_end(code ? code : mask(t.device->nodes, 2, size, set));
}
