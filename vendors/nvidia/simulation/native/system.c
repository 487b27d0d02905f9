/* Versions, error texts, and handles of devices by index, UUID, bus id and serial number. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "mig.h"
#include "sim.h"

API const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case NVML_SUCCESS: return "Success";
    case NVML_UNINITIALIZED: return "Uninitialized";
    case NVML_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_NOT_SUPPORTED: return "Not Supported";
    case NVML_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_NOT_FOUND: return "Not Found";
    case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_TIMEOUT: return "Timeout";
    case 13: return "Function Not Found";
    case NVML_GPU_IS_LOST: return "GPU is lost";
    case NVML_RESET_REQUIRED: return "GPU requires reset";
    case 17: return "The operating system has blocked the request";
    case NVML_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_IN_USE: return "In use by another client";
    case NVML_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case NVML_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    BEGIN(version);
    return sim_text(sim_state->driver_version, version, length);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    BEGIN(version);
    return sim_text(sim_state->nvml_version, version, length);
}

static nvmlReturn_t cuda_version(const char *symbol, int *version)
{
    OPEN(sim_begin(symbol), version);
    *version = (int)sim_state->cuda_version;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return cuda_version(__func__, version);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cuda_version(__func__, version);
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    BEGIN(count);
    *count = sim_present_count();
    return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

/* Position in the state file of the number-th device that is plugged in, or SIM_NONE. */
static uint32_t nth_present(unsigned number)
{
    for (uint32_t i = 0; i < sim_state->device_count; i++)
        if (sim_present(i) && number-- == 0)
            return i;
    return SIM_NONE;
}

static nvmlReturn_t hand_out(const char *symbol, uint32_t index, nvmlReturn_t absent, nvmlDevice_t *out)
{
    if (!out)
        return NVML_INVALID_ARGUMENT;
    if (index == SIM_NONE)
        return absent;
    nvmlReturn_t code = sim_pass(symbol, index);
    if (!code)
        *out = sim_handle(KIND_DEVICE, index, 0);
    return code;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    BEGIN(device);
    return hand_out(__func__, nth_present(index), NVML_INVALID_ARGUMENT, device);
}
ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

static nvmlReturn_t find_mig(const char *symbol, const char *uuid, nvmlDevice_t *out)
{
    for (uint32_t i = 0; i < sim_state->device_count; i++)
        FOR_LIVE(ci, sim_device_at(i)->compute_instances) {
            void *handle = sim_mig_handle(i, ci);
            if (!sim_present(i) || strcmp(ci->uuid, uuid) != 0)
                continue;
            nvmlReturn_t code = sim_pass(symbol, i);
            if (!code)
                *out = handle;
            return code;
        }
    return NVML_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    BEGIN(uuid && device);
    if (strncmp(uuid, "MIG-", 4) == 0)
        return find_mig(__func__, uuid, device);
    uint32_t found = SIM_NONE;
    for (uint32_t i = 0; i < sim_state->device_count; i++)
        if (sim_present(i) && strcmp(sim_device_at(i)->uuid, uuid) == 0)
            found = i;
    return hand_out(__func__, found, NVML_NOT_FOUND, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    BEGIN(bus_id);
    unsigned domain, bus, slot, function = 0;
    REQUIRE(sscanf(bus_id, "%x:%x:%x.%u", &domain, &bus, &slot, &function) >= 3, NVML_INVALID_ARGUMENT);
    char full[32];
    uint32_t found = SIM_NONE;
    snprintf(full, sizeof full, "%08X:%02X:%02X.%u", domain, bus & 0xff, slot & 0x1f, function & 7);
    for (uint32_t i = 0; i < sim_state->device_count; i++)
        if (sim_present(i) && strcasecmp(sim_device_at(i)->bus_id, full) == 0)
            found = i;
    return hand_out(__func__, found, NVML_NOT_FOUND, device);
}
ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    BEGIN(serial);
    uint32_t found = SIM_NONE;
    for (uint32_t i = 0; i < sim_state->device_count; i++)
        if (sim_present(i) && sim_device_at(i)->serial[0] && strcmp(sim_device_at(i)->serial, serial) == 0)
            found = i;
    return hand_out(__func__, found, NVML_NOT_FOUND, device);
}
