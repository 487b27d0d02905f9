/* Memory of devices and of MIG devices, in both structures. */
#include "sim.h"

typedef struct {
    uint64_t total, reserved, used;
} amount;

/* A MIG device has its instance's memory, and of it what its own processes use. */
static amount of(const sim_target *t)
{
    if (!t->ci)
        return (amount){t->device->memory, t->device->reserved, t->device->used};
    amount a = {(uint64_t)t->device->profiles[t->gi->profile].memory_mib << 20, 0, 0};
    for (uint32_t i = 0; i < t->device->process_count && i < SIM_PROCESSES; i++)
        if (t->device->processes[i].gpu_instance == t->gi->id)
            a.used += t->device->processes[i].used;
    return a;
}

static uint64_t less(uint64_t whole, uint64_t part)
{
    return whole > part ? whole - part : 0;
}

/* The first structure counts what the driver keeps for itself as used. */
API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *out)
{
    ENTER(device, handle, out);
    REQUIRE(!t.ci || !(sim_state->withheld & RIGHT_MONITOR), NVML_NO_PERMISSION);
    amount a = of(&t);
    uint64_t used = a.reserved + a.used < a.total ? a.reserved + a.used : a.total;
    *out = (nvmlMemory_t){.total = a.total, .free = less(a.total, used), .used = used};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *out)
{
    ENTER(device, handle, out);
    REQUIRE_VERSION(out, nvmlMemory_v2_t, 2);
    REQUIRE(!t.ci || !(sim_state->withheld & RIGHT_MONITOR), NVML_NO_PERMISSION);
    amount a = of(&t);
    out->total = a.total;
    out->reserved = a.reserved;
    out->used = a.used < less(a.total, a.reserved) ? a.used : less(a.total, a.reserved);
    out->free = less(a.total, a.reserved + out->used);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t *out)
{
    ENTER(gpu, handle, out);
    *out = (nvmlBAR1Memory_t){.total = t.device->bar1, .free = less(t.device->bar1, 2 << 20), .used = 2 << 20};
    return NVML_SUCCESS;
}
