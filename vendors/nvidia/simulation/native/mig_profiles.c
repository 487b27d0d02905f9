/* What a GPU can be cut into: profiles of GPU instances, and their placements. */
#include <stddef.h>
#include <string.h>

#include "mig.h"
#include "sim.h"

enum { PROFILE_NUMBERS = 0x12 };

static const sim_profile *by_number(const sim_device *device, unsigned number)
{
    for (uint32_t i = 0; i < device->profile_count; i++)
        if (device->profiles[i].number == number)
            return &device->profiles[i];
    return 0;
}

static nvmlGpuInstanceProfileInfo_t info(const sim_profile *profile)
{
    return (nvmlGpuInstanceProfileInfo_t){
        .id = profile->id,
        .sliceCount = profile->compute_slices,
        .instanceCount = profile->max_instances,
        .multiprocessorCount = profile->multiprocessors,
        .copyEngineCount = profile->copy_engines,
        .decoderCount = profile->decoders,
        .encoderCount = profile->encoders,
        .jpegCount = profile->jpegs,
        .ofaCount = profile->ofas,
        .memorySizeMB = profile->memory_mib,
    };
}

/* Asked by NVML's enumeration. A number of it that this model lacks is NotSupported. */
#define ENTER_NUMBER(handle, number, out)                     \
    ENTER(gpu, handle, out);                                  \
    REQUIRE(t.device->mig_capable, NVML_NOT_SUPPORTED);       \
    REQUIRE(number < PROFILE_NUMBERS, NVML_INVALID_ARGUMENT); \
    const sim_profile *profile = by_number(t.device, number); \
    REQUIRE(profile, NVML_NOT_SUPPORTED)

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t handle, unsigned number, nvmlGpuInstanceProfileInfo_t *out)
{
    ENTER_NUMBER(handle, number, out);
    *out = info(profile);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t handle, unsigned number, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    ENTER_NUMBER(handle, number, out);
    REQUIRE_VERSION(out, nvmlGpuInstanceProfileInfo_v2_t, 2);
    nvmlGpuInstanceProfileInfo_t v1 = info(profile);
    memcpy(&out->id, &v1, offsetof(nvmlGpuInstanceProfileInfo_t, memorySizeMB));
    out->memorySizeMB = v1.memorySizeMB;
    memset(out->name, 0, sizeof out->name);
    strcpy(out->name, "MIG ");
    strcat(out->name, profile->name);
    return NVML_SUCCESS;
}

/* Placements are counted in memory slices. Without an array the number is answered. */
API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t handle, unsigned id, nvmlPlacement_t *out, unsigned *count)
{
    ENTER(gpu, handle, count);
    REQUIRE_RIGHT(RIGHT_CONFIG);
    REQUIRE(t.device->mig_capable, NVML_NOT_SUPPORTED);
    const sim_profile *profile = sim_profile_by_id(t.device, id);
    REQUIRE(profile, NVML_INVALID_ARGUMENT);
    unsigned room = out ? *count : profile->start_count;
    for (uint32_t i = 0; out && i < profile->start_count && i < room; i++)
        out[i] = (nvmlPlacement_t){.start = profile->starts[i], .size = profile->size};
    *count = profile->start_count;
    return room < profile->start_count ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
