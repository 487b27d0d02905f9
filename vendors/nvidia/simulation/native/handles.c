/* Handles, and what they stand for: most entry points enter by one. */
#include "mig.h"
#include "sim.h"

void *sim_handle(uint32_t kind, uint32_t device, uint32_t serial)
{
    return (void *)((uintptr_t)kind << 40 | (uintptr_t)device << 32 | serial);
}

uint32_t sim_handle_kind(const void *handle)
{
    return (uint32_t)((uintptr_t)handle >> 40);
}

uint32_t sim_handle_device(const void *handle)
{
    return (uint32_t)((uintptr_t)handle >> 32) & 0xff;
}

uint32_t sim_handle_serial(const void *handle)
{
    return (uint32_t)(uintptr_t)handle;
}

void *sim_mig_handle(uint32_t device, const sim_compute_instance *ci)
{
    return sim_handle(KIND_MIG, device, ci->slot + 1);
}

static sim_compute_instance *in_slot(sim_device *device, uint32_t slot)
{
    FOR_LIVE(ci, device->compute_instances)
        if (ci->slot == slot)
            return ci;
    return 0;
}

/* Stale handles are invalid arguments. */
static nvmlReturn_t decode(const void *handle, uint32_t kind, sim_target *target)
{
    uint32_t serial = sim_handle_serial(handle);
    *target = (sim_target){.index = sim_handle_device(handle)};
    if (sim_handle_kind(handle) != kind || target->index >= sim_state->device_count)
        return NVML_INVALID_ARGUMENT;
    target->device = sim_device_at(target->index);
    if (kind == KIND_DEVICE)
        return serial ? NVML_INVALID_ARGUMENT : NVML_SUCCESS;
    if (kind == KIND_GPU_INSTANCE) {
        target->gi = sim_find_gi(target->device, serial);
        return target->gi ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
    }
    target->ci = kind == KIND_MIG ? in_slot(target->device, serial - 1) : sim_find_ci(target->device, serial);
    if (!target->ci)
        return NVML_INVALID_ARGUMENT;
    target->gi = sim_find_gi(target->device, target->ci->owner);
    return target->gi ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

/* Decodes again after the gate: a delay lets go of the lock, and an instance may be gone when it ends. */
static nvmlReturn_t enter(const char *symbol, const void *handle, uint32_t kind, sim_target *target)
{
    nvmlReturn_t code = decode(handle, kind, target);
    if (code == NVML_SUCCESS)
        code = sim_pass(symbol, target->index);
    if (code == NVML_SUCCESS)
        code = decode(handle, kind, target);
    return code;
}

static uint32_t device_kind(const void *handle)
{
    return sim_handle_kind(handle) == KIND_MIG ? KIND_MIG : KIND_DEVICE;
}

nvmlReturn_t sim_enter_device(const char *symbol, nvmlDevice_t handle, sim_target *target)
{
    nvmlReturn_t code = sim_begin(symbol);
    return code ? code : enter(symbol, handle, device_kind(handle), target);
}

nvmlReturn_t sim_enter_gpu(const char *symbol, nvmlDevice_t handle, sim_target *target)
{
    nvmlReturn_t code = sim_begin(symbol);
    return code ? code : sim_also(symbol, handle, target);
}

nvmlReturn_t sim_also(const char *symbol, nvmlDevice_t handle, sim_target *target)
{
    nvmlReturn_t code = enter(symbol, handle, device_kind(handle), target);
    return !code && target->ci ? NVML_NOT_SUPPORTED : code;
}

nvmlReturn_t sim_enter_gi(const char *symbol, nvmlGpuInstance_t handle, sim_target *target)
{
    nvmlReturn_t code = sim_begin(symbol);
    return code ? code : enter(symbol, handle, KIND_GPU_INSTANCE, target);
}

nvmlReturn_t sim_enter_ci(const char *symbol, nvmlComputeInstance_t handle, sim_target *target)
{
    nvmlReturn_t code = sim_begin(symbol);
    return code ? code : enter(symbol, handle, KIND_COMPUTE_INSTANCE, target);
}
