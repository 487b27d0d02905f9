/* Compute instances: what makes a GPU instance a MIG device. */
#include <stdio.h>
#include <string.h>

#include "sim.h"

enum { ENGINES_SHARED = 0 };

/* NVML's enumeration; the id of a profile is the same number. 0 marks one that no GPU instance here offers. */
static const uint32_t slices_of[] = {1, 2, 3, 4, 7, 8, 6, 1, 7};
enum { NUMBERS = sizeof slices_of / sizeof slices_of[0], FULL_NUMBERS = 5 };

static const sim_profile *profile_of(const sim_target *t)
{
    return &t->device->profiles[t->gi->profile];
}

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

static nvmlComputeInstanceProfileInfo_t info(const sim_profile *owner, unsigned number, uint32_t slices)
{
    return (nvmlComputeInstanceProfileInfo_t){
        .id = number,
        .sliceCount = slices,
        .instanceCount = owner->compute_slices / slices,
        .multiprocessorCount = owner->multiprocessors * slices / owner->compute_slices,
        .sharedCopyEngineCount = owner->copy_engines,
        .sharedDecoderCount = owner->decoders,
        .sharedEncoderCount = owner->encoders,
        .sharedJpegCount = owner->jpegs,
        .sharedOfaCount = owner->ofas,
    };
}

static nvmlReturn_t enter_profile(const char *symbol, nvmlGpuInstance_t handle, unsigned number, unsigned engines, const void *out,
                                  sim_target *t, uint32_t *slices)
{
    nvmlReturn_t code = sim_enter_gi(symbol, handle, t);
    if (!code && (!out || number >= NUMBERS || engines != ENGINES_SHARED))
        return NVML_INVALID_ARGUMENT;
    if (code)
        return code;
    *slices = offered(profile_of(t), number);
    return *slices ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t handle, unsigned number, unsigned engines,
                                                              nvmlComputeInstanceProfileInfo_t *out)
{
    sim_target t;
    uint32_t slices;
    nvmlReturn_t code = enter_profile(__func__, handle, number, engines, out, &t, &slices);
    if (!code)
        *out = info(profile_of(&t), number, slices);
    return sim_end(code);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t handle, unsigned number, unsigned engines,
                                                               nvmlComputeInstanceProfileInfo_v2_t *out)
{
    sim_target t;
    uint32_t slices;
    nvmlReturn_t code = enter_profile(__func__, handle, number, engines, out, &t, &slices);
    if (!code && out->version != STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2))
        code = NVML_ARGUMENT_VERSION_MISMATCH;
    if (code)
        return sim_end(code);
    const sim_profile *owner = profile_of(&t);
    out->v1 = info(owner, number, slices);
    if (slices == owner->compute_slices)
        snprintf(out->name, sizeof out->name, "MIG %s", owner->name);
    else
        snprintf(out->name, sizeof out->name, "MIG %uc.%s", slices, owner->name);
    return sim_end(NVML_SUCCESS);
}

/* The compute slices in use, as bits. */
static uint32_t taken(const sim_target *t)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < SIM_INSTANCES; i++) {
        const sim_compute_instance *ci = &t->device->compute_instances[i];
        if (ci->serial && ci->owner == t->gi->serial)
            bits |= ((1u << ci->slices) - 1) << ci->start;
    }
    return bits;
}

/* The first start from which slices are free, or SIM_NONE. */
static uint32_t free_start(uint32_t bits, uint32_t slices, uint32_t whole)
{
    for (uint32_t start = 0; start + slices <= whole; start++)
        if (!(bits & ((1u << slices) - 1) << start))
            return start;
    return SIM_NONE;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t handle, unsigned id, unsigned *count)
{
    sim_target t;
    uint32_t slices;
    nvmlReturn_t code = enter_profile(__func__, handle, id, ENGINES_SHARED, count, &t, &slices);
    if (code)
        return sim_end(code);
    uint32_t bits = taken(&t), start;
    for (*count = 0; (start = free_start(bits, slices, profile_of(&t)->compute_slices)) != SIM_NONE; (*count)++)
        bits |= ((1u << slices) - 1) << start;
    return sim_end(NVML_SUCCESS);
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

static uint32_t free_slot(const sim_device *device)
{
    uint32_t used = 0, slot = 0;
    for (uint32_t i = 0; i < SIM_INSTANCES; i++)
        if (device->compute_instances[i].serial)
            used |= 1u << device->compute_instances[i].slot;
    while (used >> slot & 1)
        slot++;
    return slot;
}

static uint32_t free_id(const sim_target *t)
{
    uint32_t used = 0, id = 0;
    for (uint32_t i = 0; i < SIM_INSTANCES; i++)
        if (t->device->compute_instances[i].serial && t->device->compute_instances[i].owner == t->gi->serial)
            used |= 1u << t->device->compute_instances[i].id;
    while (used >> id & 1)
        id++;
    return id;
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned id, nvmlComputeInstance_t *out)
{
    sim_target t;
    uint32_t slices;
    nvmlReturn_t code = enter_profile(__func__, handle, id, ENGINES_SHARED, out, &t, &slices);
    if (code)
        return sim_end(code);
    uint32_t start = free_start(taken(&t), slices, profile_of(&t)->compute_slices);
    uint32_t slot = free_slot(t.device), place = 0;
    while (place < SIM_INSTANCES && t.device->compute_instances[place].serial)
        place++;
    if (start == SIM_NONE || slot >= t.device->mig_max_devices || place == SIM_INSTANCES)
        return sim_end(NVML_INSUFFICIENT_RESOURCES);
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
    *out = sim_handle(KIND_COMPUTE_INSTANCE, t.index, ci->serial);
    return sim_end(NVML_SUCCESS);
}

/* A process keeps its instance alive. */
API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_ci(__func__, handle, &t);
    for (uint32_t i = 0; !code && i < t.device->process_count && i < SIM_PROCESSES; i++) {
        const sim_process *process = &t.device->processes[i];
        if (process->gpu_instance == t.gi->id && process->compute_instance == t.ci->id)
            code = NVML_IN_USE;
    }
    if (!code)
        t.ci->serial = 0;
    return sim_end(code);
}

/* The caller's array must have room for instanceCount of the profile; count is only ever answered. */
API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned id, nvmlComputeInstance_t *out, unsigned *count)
{
    sim_target t;
    uint32_t slices;
    nvmlReturn_t code = enter_profile(__func__, handle, id, ENGINES_SHARED, out ? count : 0, &t, &slices);
    if (code)
        return sim_end(code);
    *count = 0;
    for (uint32_t i = 0; i < SIM_INSTANCES; i++) {
        const sim_compute_instance *ci = &t.device->compute_instances[i];
        if (ci->serial && ci->owner == t.gi->serial && ci->number == id)
            out[(*count)++] = sim_handle(KIND_COMPUTE_INSTANCE, t.index, ci->serial);
    }
    return sim_end(NVML_SUCCESS);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned id, nvmlComputeInstance_t *out)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_gi(__func__, handle, &t);
    if (!code && !out)
        code = NVML_INVALID_ARGUMENT;
    for (uint32_t i = 0; !code && i < SIM_INSTANCES; i++) {
        const sim_compute_instance *ci = &t.device->compute_instances[i];
        if (ci->serial && ci->owner == t.gi->serial && ci->id == id) {
            *out = sim_handle(KIND_COMPUTE_INSTANCE, t.index, ci->serial);
            return sim_end(NVML_SUCCESS);
        }
    }
    return sim_end(code ? code : NVML_NOT_FOUND);
}

API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *out)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_ci(__func__, handle, &t);
    if (!code && !out)
        code = NVML_INVALID_ARGUMENT;
    if (!code)
        *out = (nvmlComputeInstanceInfo_t){
            .device = sim_handle(KIND_DEVICE, t.index, 0),
            .gpuInstance = sim_handle(KIND_GPU_INSTANCE, t.index, t.gi->serial),
            .id = t.ci->id,
            .profileId = t.ci->number,
            .placement = {.start = t.ci->start, .size = t.ci->slices},
        };
    return sim_end(code);
}
