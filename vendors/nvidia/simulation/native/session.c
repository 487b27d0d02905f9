/* Init and shutdown, and the gate that every other call passes: sessions, delays, injected failures, lost devices. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "session.h"
#include "sim.h"

static unsigned sessions;
static uint32_t epoch;

static const sim_failure *injected(const char *symbol, uint32_t device)
{
    for (uint32_t i = 0; i < sim_state->failure_count && i < SIM_FAILURES; i++) {
        const sim_failure *failure = &sim_state->failures[i];
        if (failure->device == device && strcmp(failure->symbol, symbol) == 0)
            return failure;
    }
    return 0;
}

nvmlReturn_t sim_injected(const char *symbol, uint32_t device)
{
    const sim_failure *failure = injected(symbol, device);
    return failure ? (nvmlReturn_t)failure->code : NVML_SUCCESS;
}

/* What is injected for one of the calls to come, whichever it is. */
static nvmlReturn_t counted(void)
{
    if (!sim_state->failing)
        return NVML_SUCCESS;
    if (sim_state->calls_left) {
        sim_state->calls_left--;
        return NVML_SUCCESS;
    }
    if (sim_state->failing != SIM_NONE)
        sim_state->failing--;
    return (nvmlReturn_t)sim_state->fail_code;
}

/* The call that this thread is in. */
static __thread const char *current;

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
    current = symbol;
    if (sessions == 0)
        return NVML_UNINITIALIZED;
    delay_all();
    nvmlReturn_t code = alive(symbol);
    return code || strcmp(symbol, "nvmlEventSetWait_v2") == 0 ? code : counted();
}

nvmlReturn_t sim_again(const char *symbol)
{
    sim_lock();
    return alive(symbol);
}

nvmlReturn_t sim_end(nvmlReturn_t code)
{
    int fatal = sim_state && current && sim_state->fatal[0] && strcmp(sim_state->fatal, current) == 0;
    current = 0;
    if (fatal)
        sim_state->fatal[0] = 0;
    sim_unlock();
    if (fatal)
        kill(getpid(), SIGKILL);
    return code;
}

static uint32_t latency(const char *symbol, uint32_t device)
{
    const sim_failure *failure = injected(symbol, device);
    return failure ? failure->delay_ms : 0;
}

static void delay(const char *symbol, uint32_t index)
{
    const sim_device *device = sim_device_at(index);
    uint32_t slow = watch(&device->slow_ms) + latency(symbol, index) + latency(symbol, SIM_NONE);
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
    delay(symbol, index);
    nvmlReturn_t code = alive(symbol);
    if (code == NVML_SUCCESS)
        code = sim_injected(symbol, index);
    if (code == NVML_SUCCESS && (device->lost || !sim_present(index)))
        code = NVML_GPU_IS_LOST;
    return code;
}
