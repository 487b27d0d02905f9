/* MIG mode, MIG devices, and what can be asked of them. */
#include "sim.h"

static nvmlReturn_t enter_capable(const char *symbol, nvmlDevice_t handle, const void *out, sim_target *t)
{
    nvmlReturn_t code = sim_enter_gpu(symbol, handle, t);
    if (!code && !out)
        return NVML_INVALID_ARGUMENT;
    return !code && !t->device->mig_capable ? NVML_NOT_SUPPORTED : code;
}

static nvmlReturn_t enter_mig(const char *symbol, nvmlDevice_t handle, const void *out, sim_target *t)
{
    nvmlReturn_t code = sim_enter(symbol, handle, t);
    if (!code && !out)
        return NVML_INVALID_ARGUMENT;
    return !code && !t->ci ? NVML_INVALID_ARGUMENT : code;
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *current, unsigned *pending)
{
    sim_target t;
    nvmlReturn_t code = enter_capable(__func__, handle, current && pending ? current : 0, &t);
    if (!code) {
        *current = t.device->mig_current;
        *pending = t.device->mig_pending;
    }
    return sim_end(code);
}

static int has_instances(const sim_device *device)
{
    for (uint32_t i = 0; i < SIM_INSTANCES; i++)
        if (device->gpu_instances[i].serial)
            return 1;
    return 0;
}

/* The call succeeds either way; status tells whether the mode is active, or what holds it up. Instances forbid turning
   MIG off. Processes leave the new mode pending until a reset. */
API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t handle, unsigned mode, nvmlReturn_t *status)
{
    sim_target t;
    nvmlReturn_t code = enter_capable(__func__, handle, status, &t);
    if (!code && mode > 1)
        code = NVML_INVALID_ARGUMENT;
    if (code)
        return sim_end(code);
    *status = NVML_SUCCESS;
    if (!mode && has_instances(t.device)) {
        *status = NVML_IN_USE;
        return sim_end(NVML_SUCCESS);
    }
    t.device->mig_pending = mode;
    if (t.device->process_count && t.device->mig_current != mode)
        *status = NVML_IN_USE;
    else
        t.device->mig_current = mode;
    return sim_end(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned *is_mig)
{
    sim_target t;
    nvmlReturn_t code = sim_enter(__func__, handle, &t);
    if (!code && !is_mig)
        code = NVML_INVALID_ARGUMENT;
    if (!code)
        *is_mig = t.ci != 0;
    return sim_end(code);
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned *count)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_gpu(__func__, handle, &t);
    if (!code && !count)
        code = NVML_INVALID_ARGUMENT;
    if (!code)
        *count = t.device->mig_capable ? t.device->mig_max_devices : 0;
    return sim_end(code);
}

/* Slots keep their number while others come and go: an empty one is NotFound, and the next may be taken. */
API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index, nvmlDevice_t *out)
{
    sim_target t;
    nvmlReturn_t code = enter_capable(__func__, handle, out, &t);
    if (!code && (!t.device->mig_current || index >= t.device->mig_max_devices))
        code = NVML_INVALID_ARGUMENT;
    if (code)
        return sim_end(code);
    for (uint32_t i = 0; i < SIM_INSTANCES; i++) {
        const sim_compute_instance *ci = &t.device->compute_instances[i];
        if (ci->serial && ci->slot == index) {
            *out = sim_handle(KIND_MIG, t.index, ci->serial);
            return sim_end(NVML_SUCCESS);
        }
    }
    return sim_end(NVML_NOT_FOUND);
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t *out)
{
    sim_target t;
    nvmlReturn_t code = enter_mig(__func__, handle, out, &t);
    if (!code)
        *out = sim_handle(KIND_DEVICE, t.index, 0);
    return sim_end(code);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned *id)
{
    sim_target t;
    nvmlReturn_t code = enter_mig(__func__, handle, id, &t);
    if (!code)
        *id = t.gi->id;
    return sim_end(code);
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned *id)
{
    sim_target t;
    nvmlReturn_t code = enter_mig(__func__, handle, id, &t);
    if (!code)
        *id = t.ci->id;
    return sim_end(code);
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *out)
{
    sim_target t;
    nvmlReturn_t code = sim_enter(__func__, handle, &t);
    if (!code && !out)
        code = NVML_INVALID_ARGUMENT;
    if (!code && !t.ci)
        code = NVML_NOT_SUPPORTED;
    if (code)
        return sim_end(code);
    const sim_profile *profile = &t.device->profiles[t.gi->profile];
    *out = (nvmlDeviceAttributes_t){
        .multiprocessorCount = profile->multiprocessors * t.ci->slices / profile->compute_slices,
        .sharedCopyEngineCount = profile->copy_engines,
        .sharedDecoderCount = profile->decoders,
        .sharedEncoderCount = profile->encoders,
        .sharedJpegCount = profile->jpegs,
        .sharedOfaCount = profile->ofas,
        .gpuInstanceSliceCount = profile->compute_slices,
        .computeInstanceSliceCount = t.ci->slices,
        .memorySizeMB = profile->memory_mib,
    };
    return sim_end(NVML_SUCCESS);
}
