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

/* The delay of every call, for which the state is let go of. */
static void delay_all(void)
{
    uint32_t slow = watch(&sim_state->slow_ms);
    if (!slow)
        return;
    sim_unlock();
    sim_sleep_ms(slow);
    sim_lock();
}

static nvmlReturn_t open_session(void)
{
    if (sessions == 0) {
        nvmlReturn_t code = sim_open();
        if (code != NVML_SUCCESS)
            return code;
    }
    sim_lock_rest();
    delay_all();
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
    delay_all();
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
