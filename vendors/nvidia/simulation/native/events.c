/* Event sets: registration, and a wait that really sleeps. Sets live in the process, events in the state file. */
#include <unistd.h>

#include "sim.h"

enum { SETS = 64 };
enum { EVENT_SINGLE_BIT = 1, EVENT_DOUBLE_BIT = 2, EVENT_PSTATE = 4, EVENT_XID = 8, EVENT_CLOCK = 16 };

typedef struct {
    uint64_t types;
    uint64_t seen;
    int told_lost;
} registration;

typedef struct {
    uint32_t serial;
    int changes;
    registration devices[SIM_DEVICES];
} event_set;

static event_set sets[SETS];
static uint32_t serials;

static event_set *find(const void *handle)
{
    uint32_t slot = sim_handle_device(handle);
    if (sim_handle_kind(handle) != KIND_EVENT_SET || slot >= SETS || !sets[slot].serial)
        return 0;
    return sets[slot].serial == sim_handle_serial(handle) ? &sets[slot] : 0;
}

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
    BEGIN(out);
    for (uint32_t slot = 0; slot < SETS; slot++) {
        if (sets[slot].serial)
            continue;
        sets[slot] = (event_set){.serial = ++serials, .changes = sim_changes()};
        *out = sim_handle(KIND_EVENT_SET, slot, serials);
        return NVML_SUCCESS;
    }
    return NVML_INSUFFICIENT_RESOURCES;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t handle)
{
    BEGIN(find(handle));
    event_set *set = find(handle);
    set->serial = 0;
    if (set->changes >= 0)
        close(set->changes);
    return NVML_SUCCESS;
}

static uint64_t supported(const sim_device *device)
{
    uint64_t types = EVENT_XID | EVENT_PSTATE | EVENT_CLOCK;
    return device->ecc ? types | EVENT_SINGLE_BIT | EVENT_DOUBLE_BIT : types;
}

GETTER(nvmlDeviceGetSupportedEventTypes, gpu, uint64_t, supported(t.device));

/* Events from before the registration are not delivered. */
API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, uint64_t types, nvmlEventSet_t set_handle)
{
    ENTER(gpu, handle, find(set_handle));
    REQUIRE(!(types & ~supported(t.device)), NVML_NOT_SUPPORTED);
    registration *r = &find(set_handle)->devices[t.index];
    if (!r->types)
        r->seen = sim_state->event_sequence;
    r->types |= types;
    return NVML_SUCCESS;
}

/* The oldest event that the set has not seen. Sequence numbers order the ring. */
static const sim_event *next(event_set *set)
{
    const sim_event *oldest = 0;
    for (uint32_t i = 0; i < SIM_EVENTS; i++) {
        const sim_event *event = &sim_state->events[i];
        if (!event->sequence || event->device >= sim_state->device_count)
            continue;
        const registration *r = &set->devices[event->device];
        if (r->types & event->type && event->sequence > r->seen && (!oldest || event->sequence < oldest->sequence))
            oldest = event;
    }
    return oldest;
}

static nvmlReturn_t failure(const char *symbol, const event_set *set)
{
    for (uint32_t i = 0; i < sim_state->device_count; i++) {
        nvmlReturn_t code = set->devices[i].types ? sim_injected(symbol, i) : NVML_SUCCESS;
        if (code)
            return code;
    }
    return NVML_SUCCESS;
}

/* A registered device that fell off the bus fails the wait once, unless it went quietly. */
static int newly_lost(event_set *set)
{
    int found = 0;
    for (uint32_t i = 0; i < sim_state->device_count; i++) {
        const sim_device *device = sim_device_at(i);
        int lost = device->lost && !device->quiet;
        found |= lost && set->devices[i].types && !set->devices[i].told_lost;
        set->devices[i].told_lost = lost;
    }
    return found;
}

/* One look. Timeout means: nothing yet. */
static nvmlReturn_t look(event_set *set, nvmlEventData_t *out, int whole)
{
    const sim_event *event = next(set);
    nvmlReturn_t code = failure("nvmlEventSetWait_v2", set);
    if (code)
        return code;
    if (!event)
        return newly_lost(set) ? NVML_GPU_IS_LOST : NVML_TIMEOUT;
    set->devices[event->device].seen = event->sequence;
    out->device = sim_handle(KIND_DEVICE, event->device, 0);
    out->eventType = event->type;
    out->eventData = event->data;
    if (whole) {
        out->gpuInstanceId = event->gpu_instance;
        out->computeInstanceId = event->compute_instance;
    }
    return NVML_SUCCESS;
}

/* Until the state has changed. Who cannot be told of it looks again and again, the longer nothing happens the less. */
static void rest(int changes, uint32_t left_ms, uint32_t *tick_ms)
{
    if (changes >= 0) {
        sim_await_change(changes, left_ms);
        return;
    }
    sim_sleep_ms(left_ms < *tick_ms ? left_ms : *tick_ms);
    if (*tick_ms < SIM_IDLE_TICK_MS)
        *tick_ms *= 2;
}

static nvmlReturn_t wait_for(nvmlEventSet_t handle, nvmlEventData_t *out, unsigned timeout_ms, int whole)
{
    static const char symbol[] = "nvmlEventSetWait_v2";
    uint64_t end = sim_clock_ms() + timeout_ms;
    uint32_t tick = SIM_TICK_MS;
    nvmlReturn_t code = sim_begin(symbol);
    for (;;) {
        event_set *set = find(handle);
        if (!code && (!set || !out))
            code = NVML_INVALID_ARGUMENT;
        if (!code)
            code = look(set, out, whole);
        uint64_t now = sim_clock_ms();
        if (code != NVML_TIMEOUT || now >= end)
            return sim_end(code);
        int changes = set->changes;
        sim_end(code);
        rest(changes, (uint32_t)(end - now), &tick);
        code = sim_again(symbol);
    }
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned timeout_ms)
{
    return wait_for(set, out, timeout_ms, 1);
}

/* The first version's structure ends before the instance ids. */
API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *out, unsigned timeout_ms)
{
    return wait_for(set, out, timeout_ms, 0);
}
