/* Init and shutdown, and the gate that every other call passes: sessions, delays, injected failures, lost devices. */
#include <string.h>

#include "session.h"
#include "sim.h"

static unsigned sessions;
static uint32_t epoch;

nvmlReturn_t sim_injected(const char *symbol, uint32_t device)
{
    for (uint32_t i = 0; i < sim_state->failure_count && i < SIM_FAILURES; i++) {
        const sim_failure *failure = &sim_state->failures[i];
        if (failure->device == device && strcmp(failure->symbol, symbol) == 0)
            return (nvmlReturn_t)failure->code;
    }
    return NVML_SUCCESS;
}

static uint32_t watch(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static nvmlReturn_t open_session(void)
{
    if (sessions == 0) {
        nvmlReturn_t code = sim_open();
        if (code != NVML_SUCCESS)
            return code;
    }
    sim_lock_rest();
    uint32_t slow = watch(&sim_state->slow_ms);
    if (slow) {
        sim_unlock();
        sim_sleep_ms(slow);
        sim_lock();
    }
    if (sim_state->driver == DRIVER_GONE)
        return NVML_DRIVER_NOT_LOADED;
    if (sim_state->driver == DRIVER_MISMATCH)
        return NVML_LIB_RM_VERSION_MISMATCH;
    nvmlReturn_t code = sim_injected("nvmlInitWithFlags", SIM_NONE);
    if (code != NVML_SUCCESS)
        return code;
    if (sessions > 0 && epoch != sim_state->epoch)
        return NVML_DRIVER_NOT_LOADED;
    if (sessions == 0)
        epoch = sim_state->epoch;
    sessions++;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    sim_lock_threads();
    return sim_end(open_session());
}

API nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

/* Works without a driver too: a session of a driver that went away must be closed before a new one opens. */
API nvmlReturn_t nvmlShutdown(void)
{
    sim_lock();
    if (sessions == 0)
        return sim_end(NVML_UNINITIALIZED);
    nvmlReturn_t code = sim_injected(__func__, SIM_NONE);
    if (code == NVML_SUCCESS)
        sessions--;
    return sim_end(code);
}

static nvmlReturn_t alive(const char *symbol)
{
    if (sessions == 0)
        return NVML_UNINITIALIZED;
    if (sim_state->driver == DRIVER_GONE || sim_state->epoch != epoch)
        return NVML_DRIVER_NOT_LOADED;
    return sim_injected(symbol, SIM_NONE);
}

nvmlReturn_t sim_begin(const char *symbol)
{
    sim_lock();
    if (sessions == 0)
        return NVML_UNINITIALIZED;
    uint32_t slow = watch(&sim_state->slow_ms);
    if (slow) {
        sim_unlock();
        sim_sleep_ms(slow);
        sim_lock();
    }
    return alive(symbol);
}

nvmlReturn_t sim_again(const char *symbol)
{
    sim_lock();
    return alive(symbol);
}

nvmlReturn_t sim_end(nvmlReturn_t code)
{
    sim_unlock();
    return code;
}

static void delay(const sim_device *device)
{
    uint32_t slow = watch(&device->slow_ms);
    if (!slow && !watch(&device->hang))
        return;
    sim_unlock();
    sim_sleep_ms(slow);
    while (watch(&device->hang))
        sim_sleep_ms(SIM_TICK_MS);
    sim_lock();
}

nvmlReturn_t sim_pass(const char *symbol, uint32_t index)
{
    if (index >= sim_state->device_count)
        return NVML_INVALID_ARGUMENT;
    const sim_device *device = sim_device_at(index);
    delay(device);
    nvmlReturn_t code = alive(symbol);
    if (code == NVML_SUCCESS)
        code = sim_injected(symbol, index);
    if (code == NVML_SUCCESS && (device->lost || !sim_present(index)))
        code = NVML_GPU_IS_LOST;
    return code;
}

/* A MIG device's handle is its compute instance's serial. Stale ones are invalid arguments. */
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
    target->ci = sim_find_ci(target->device, serial);
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

nvmlReturn_t sim_enter(const char *symbol, nvmlDevice_t handle, sim_target *target)
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
