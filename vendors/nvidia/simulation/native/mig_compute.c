/* Compute instances: what makes a GPU instance a MIG device. */
#include <stdio.h>
#include <string.h>

#include "mig.h"
#include "sim.h"

enum { ENGINES_SHARED = 0 };

/* NVML's enumeration; the id of a profile is the same number. 0 marks one that no GPU instance here offers. */
static const uint32_t slices_of[] = {1, 2, 3, 4, 7, 8, 6, 1, 7};
enum { NUMBERS = sizeof slices_of / sizeof slices_of[0], FULL_NUMBERS = 5 };

/* Instances of 1, 2, 3, 4 and 7 slices. Four slices are split in halves or quarters, never in 3 and 1. */
static uint32_t offered(const sim_profile *owner, unsigned number)
{
    if (number >= FULL_NUMBERS)
        return 0;
    uint32_t slices = slices_of[number];
    if (slices > owner->compute_slices || (owner->compute_slices == 4 && slices == 3))
        return 0;
    return slices;
}

/* Enters a GPU instance, by the number of one of its profiles for compute instances. */
#define ENTER_PROFILE(handle, number, engines, out)                                \
    ENTER(gi, handle, out);                                                        \
    REQUIRE(number < NUMBERS && engines == ENGINES_SHARED, NVML_INVALID_ARGUMENT); \
    const sim_profile *owner = &t.device->profiles[t.gi->profile];                 \
    uint32_t slices = offered(owner, number);                                      \
    REQUIRE(slices, NVML_NOT_SUPPORTED)

static nvmlComputeInstanceProfileInfo_t info(const sim_profile *owner, unsigned number, uint32_t slices)
{
    return (nvmlComputeInstanceProfileInfo_t){
        .id = number,
        .sliceCount = slices,
        .instanceCount = owner->compute_slices / slices,
        .multiprocessorCount = owner->multiprocessors * slices / owner->compute_slices,
        SHARED_ENGINES(owner),
    };
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t handle, unsigned number, unsigned engines,
                                                              nvmlComputeInstanceProfileInfo_t *out)
{
    ENTER_PROFILE(handle, number, engines, out);
    *out = info(owner, number, slices);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t handle, unsigned number, unsigned engines,
                                                               nvmlComputeInstanceProfileInfo_v2_t *out)
{
    ENTER_PROFILE(handle, number, engines, out);
    REQUIRE_VERSION(out, nvmlComputeInstanceProfileInfo_v2_t, 2);
    out->v1 = info(owner, number, slices);
    if (slices == owner->compute_slices)
        snprintf(out->name, sizeof out->name, "MIG %s", owner->name);
    else
        snprintf(out->name, sizeof out->name, "MIG %uc.%s", slices, owner->name);
    return NVML_SUCCESS;
}

/* The compute slices in use, as bits. */
static uint32_t taken(const sim_target *t)
{
    uint32_t bits = 0;
    FOR_LIVE(ci, t->device->compute_instances)
        if (ci->owner == t->gi->serial)
            bits |= sim_run(ci->start, ci->slices);
    return bits;
}

/* The first start from which slices are free, or SIM_NONE. */
static uint32_t free_start(uint32_t bits, uint32_t slices, uint32_t whole)
{
    for (uint32_t start = 0; start + slices <= whole; start++)
        if (!(bits & sim_run(start, slices)))
            return start;
    return SIM_NONE;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t handle, unsigned id, unsigned *count)
{
    ENTER_PROFILE(handle, id, ENGINES_SHARED, count);
    uint32_t bits = taken(&t), start;
    for (*count = 0; (start = free_start(bits, slices, owner->compute_slices)) != SIM_NONE; (*count)++)
        bits |= sim_run(start, slices);
    return NVML_SUCCESS;
}

/* A new one for each instance that is made, the same for every process that looks. */
static void make_uuid(const sim_device *device, uint32_t serial, char *out, size_t size)
{
    uint64_t half[2] = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};
    for (int h = 0; h < 2; h++) {
        for (const char *c = device->uuid; *c; c++)
            half[h] = (half[h] ^ (uint8_t)*c) * 0x100000001b3u;
        for (int i = 0; i < 4; i++)
            half[h] = (half[h] ^ (serial >> i * 8 & 0xff)) * 0x100000001b3u;
    }
    snprintf(out, size, "MIG-%08x-%04x-5%03x-a%03x-%04x%08x", (unsigned)(half[0] >> 32), (unsigned)(half[0] >> 16 & 0xffff),
             (unsigned)(half[0] & 0xfff), (unsigned)(half[1] >> 48 & 0xfff), (unsigned)(half[1] >> 32 & 0xffff),
             (unsigned)half[1]);
}

/* The lowest free number: of MIG devices on the GPU, and of compute instances in the GPU instance. */
static uint32_t free_slot(const sim_device *device)
{
    uint32_t used = 0;
    FOR_LIVE(ci, device->compute_instances)
        used |= 1u << ci->slot;
    return (uint32_t)__builtin_ctz(~used);
}

static uint32_t free_id(const sim_target *t)
{
    uint32_t used = 0;
    FOR_LIVE(ci, t->device->compute_instances)
        if (ci->owner == t->gi->serial)
            used |= 1u << ci->id;
    return (uint32_t)__builtin_ctz(~used);
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned id, nvmlComputeInstance_t *out)
{
    ENTER_PROFILE(handle, id, ENGINES_SHARED, out);
    REQUIRE_RIGHT(RIGHT_CONFIG);
    uint32_t start = free_start(taken(&t), slices, owner->compute_slices);
    uint32_t slot = free_slot(t.device), place = 0;
    while (place < SIM_INSTANCES && t.device->compute_instances[place].serial)
        place++;
    REQUIRE(start != SIM_NONE && slot < t.device->mig_max_devices && place < SIM_INSTANCES, NVML_INSUFFICIENT_RESOURCES);
    sim_compute_instance *ci = &t.device->compute_instances[place];
    *ci = (sim_compute_instance){
        .owner = t.gi->serial,
        .id = free_id(&t),
        .number = id,
        .start = start,
        .slices = slices,
        .slot = slot,
    };
    make_uuid(t.device, ++sim_state->serial, ci->uuid, sizeof ci->uuid);
    ci->serial = sim_state->serial;
    sim_show_capability(t.device, t.gi, ci);
    *out = sim_handle(KIND_COMPUTE_INSTANCE, t.index, ci->serial);
    return NVML_SUCCESS;
}

/* Whoever has it open keeps it alive, and so does one of whom no list of processes tells. */
API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle)
{
    ENTER(ci, handle, 1);
    REQUIRE_RIGHT(RIGHT_CONFIG);
    REQUIRE(!t.ci->held && !sim_users(t.device, t.gi, t.ci), NVML_IN_USE);
    sim_hide_capability(t.device, t.gi, t.ci);
    t.ci->serial = 0;
    return NVML_SUCCESS;
}

/* The caller's array must have room for instanceCount of the profile; count is only ever answered. */
API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned id, nvmlComputeInstance_t *out, unsigned *count)
{
    ENTER_PROFILE(handle, id, ENGINES_SHARED, out ? count : 0);
    REQUIRE_RIGHT(RIGHT_CONFIG);
    *count = 0;
    FOR_LIVE(ci, t.device->compute_instances)
        if (ci->owner == t.gi->serial && ci->number == id)
            out[(*count)++] = sim_handle(KIND_COMPUTE_INSTANCE, t.index, ci->serial);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned id, nvmlComputeInstance_t *out)
{
    ENTER(gi, handle, out);
    REQUIRE_RIGHT(RIGHT_CONFIG);
    FOR_LIVE(ci, t.device->compute_instances)
        if (ci->owner == t.gi->serial && ci->id == id) {
            *out = sim_handle(KIND_COMPUTE_INSTANCE, t.index, ci->serial);
            return NVML_SUCCESS;
        }
    return NVML_NOT_FOUND;
}

/* Its device is the MIG device; other drivers may name the whole GPU there. */
API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *out)
{
    ENTER(ci, handle, out);
    *out = (nvmlComputeInstanceInfo_t){
        .device = sim_state->parent_in_info ? sim_handle(KIND_DEVICE, t.index, 0) : sim_mig_handle(t.index, t.ci),
        .gpuInstance = sim_handle(KIND_GPU_INSTANCE, t.index, t.gi->serial),
        .id = t.ci->id,
        .profileId = t.ci->number,
        .placement = {.start = t.ci->start, .size = t.ci->slices},
    };
    return NVML_SUCCESS;
}
