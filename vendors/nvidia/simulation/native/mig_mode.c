/* MIG mode, MIG devices, and what can be asked of them. */
#include "mig.h"
#include "sim.h"

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *current, unsigned *pending)
{
    ENTER(gpu, handle, current && pending);
    REQUIRE(t.device->mig_capable, NVML_NOT_SUPPORTED);
    *current = t.device->mig_current;
    *pending = t.device->mig_pending;
    return NVML_SUCCESS;
}

static int has_instances(const sim_device *device)
{
    FOR_LIVE(gi, device->gpu_instances)
        return 1;
    return 0;
}

/* The call succeeds either way; status tells whether the mode is active, or what holds it up. Instances forbid turning
   MIG off. Processes leave the new mode pending until a reset, and so does a hypervisor that keeps resets to itself. */
API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t handle, unsigned mode, nvmlReturn_t *status)
{
    ENTER(gpu, handle, status);
    REQUIRE(t.device->mig_capable, NVML_NOT_SUPPORTED);
    REQUIRE(mode <= 1, NVML_INVALID_ARGUMENT);
    REQUIRE_RIGHT(RIGHT_CONFIG);
    *status = NVML_IN_USE;
    if (!mode && has_instances(t.device))
        return NVML_SUCCESS;
    t.device->mig_pending = mode;
    if (t.device->process_count && t.device->mig_current != mode)
        return NVML_SUCCESS;
    *status = NVML_RESET_REQUIRED;
    if (t.device->passed_through && t.device->mig_current != mode)
        return NVML_SUCCESS;
    t.device->mig_current = mode;
    *status = NVML_SUCCESS;
    return NVML_SUCCESS;
}

GETTER(nvmlDeviceIsMigDeviceHandle, device, unsigned, t.ci != 0);
GETTER(nvmlDeviceGetMaxMigDeviceCount, gpu, unsigned, t.device->mig_capable ? t.device->mig_max_devices : 0);

/* Slots keep their number while others come and go: an empty one is NotFound, and the next may be taken. */
API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index, nvmlDevice_t *out)
{
    ENTER(gpu, handle, out);
    REQUIRE(t.device->mig_capable, NVML_NOT_SUPPORTED);
    REQUIRE(t.device->mig_current && index < t.device->mig_max_devices, NVML_INVALID_ARGUMENT);
    FOR_LIVE(ci, t.device->compute_instances)
        if (ci->slot == index) {
            *out = sim_mig_handle(t.index, ci);
            return NVML_SUCCESS;
        }
    return NVML_NOT_FOUND;
}

/* An entry point that answers one thing about the MIG device t, and InvalidArgument of a whole GPU. */
#define MIG_GETTER(function, type, expression)                \
    API nvmlReturn_t function(nvmlDevice_t handle, type *out) \
    {                                                         \
        ENTER(device, handle, out);                           \
        REQUIRE(t.ci, NVML_INVALID_ARGUMENT);                 \
        *out = (expression);                                  \
        return NVML_SUCCESS;                                  \
    }                                                         \
    _Static_assert(1, "a semicolon follows")

MIG_GETTER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t, sim_handle(KIND_DEVICE, t.index, 0));
MIG_GETTER(nvmlDeviceGetGpuInstanceId, unsigned, t.gi->id);
MIG_GETTER(nvmlDeviceGetComputeInstanceId, unsigned, t.ci->id);

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *out)
{
    ENTER(device, handle, out);
    REQUIRE(t.ci, NVML_NOT_SUPPORTED);
    const sim_profile *profile = &t.device->profiles[t.gi->profile];
    *out = (nvmlDeviceAttributes_t){
        .multiprocessorCount = profile->multiprocessors * t.ci->slices / profile->compute_slices,
        SHARED_ENGINES(profile),
        .gpuInstanceSliceCount = profile->compute_slices,
        .computeInstanceSliceCount = t.ci->slices,
        .memorySizeMB = profile->memory_mib,
    };
    return NVML_SUCCESS;
}
