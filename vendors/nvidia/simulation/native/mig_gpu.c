/* GPU instances: profiles, placements, capacity, creation and destruction. */
#include <stddef.h>
#include <string.h>

#include "sim.h"

enum { PROFILE_NUMBERS = 0x12 };

/* Everything here needs a GPU that has MIG; what makes or counts instances needs the mode to be on as well. */
static nvmlReturn_t enter_capable(const char *symbol, nvmlDevice_t handle, const void *out, int on, sim_target *t)
{
    nvmlReturn_t code = sim_enter_gpu(symbol, handle, t);
    if (code)
        return code;
    if (!out)
        return NVML_INVALID_ARGUMENT;
    return !t->device->mig_capable || (on && !t->device->mig_current) ? NVML_NOT_SUPPORTED : NVML_SUCCESS;
}

static const sim_profile *by_number(const sim_device *device, unsigned number)
{
    for (uint32_t i = 0; i < device->profile_count; i++)
        if (device->profiles[i].number == number)
            return &device->profiles[i];
    return 0;
}

static const sim_profile *by_id(const sim_device *device, unsigned id)
{
    for (uint32_t i = 0; i < device->profile_count; i++)
        if (device->profiles[i].id == id)
            return &device->profiles[i];
    return 0;
}

static nvmlGpuInstanceProfileInfo_t info(const sim_profile *profile)
{
    return (nvmlGpuInstanceProfileInfo_t){
        .id = profile->id,
        .sliceCount = profile->compute_slices,
        .instanceCount = profile->max_instances,
        .multiprocessorCount = profile->multiprocessors,
        .copyEngineCount = profile->copy_engines,
        .decoderCount = profile->decoders,
        .encoderCount = profile->encoders,
        .jpegCount = profile->jpegs,
        .ofaCount = profile->ofas,
        .memorySizeMB = profile->memory_mib,
    };
}

/* Asked by NVML's enumeration. A number of it that this model lacks is NotSupported. */
static nvmlReturn_t enter_profile(const char *symbol, nvmlDevice_t handle, unsigned number, const void *out, sim_target *t,
                                  const sim_profile **profile)
{
    nvmlReturn_t code = enter_capable(symbol, handle, out, 0, t);
    if (!code && number >= PROFILE_NUMBERS)
        return NVML_INVALID_ARGUMENT;
    if (code)
        return code;
    *profile = by_number(t->device, number);
    return *profile ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t handle, unsigned number, nvmlGpuInstanceProfileInfo_t *out)
{
    sim_target t;
    const sim_profile *profile;
    nvmlReturn_t code = enter_profile(__func__, handle, number, out, &t, &profile);
    if (!code)
        *out = info(profile);
    return sim_end(code);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t handle, unsigned number, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    sim_target t;
    const sim_profile *profile;
    nvmlReturn_t code = enter_profile(__func__, handle, number, out, &t, &profile);
    if (!code && out->version != STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2))
        code = NVML_ARGUMENT_VERSION_MISMATCH;
    if (code)
        return sim_end(code);
    nvmlGpuInstanceProfileInfo_t v1 = info(profile);
    memcpy(&out->id, &v1, offsetof(nvmlGpuInstanceProfileInfo_t, memorySizeMB));
    out->memorySizeMB = v1.memorySizeMB;
    memset(out->name, 0, sizeof out->name);
    strcpy(out->name, "MIG ");
    strcat(out->name, profile->name);
    return sim_end(NVML_SUCCESS);
}

/* Placements are counted in memory slices. Without an array the number is answered. */
API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t handle, unsigned id, nvmlPlacement_t *out, unsigned *count)
{
    sim_target t;
    nvmlReturn_t code = enter_capable(__func__, handle, count, 0, &t);
    const sim_profile *profile = code ? 0 : by_id(t.device, id);
    if (!code && !profile)
        code = NVML_INVALID_ARGUMENT;
    if (code)
        return sim_end(code);
    unsigned room = out ? *count : profile->start_count;
    for (uint32_t i = 0; out && i < profile->start_count && i < room; i++)
        out[i] = (nvmlPlacement_t){.start = profile->starts[i], .size = profile->size};
    *count = profile->start_count;
    return sim_end(room < profile->start_count ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS);
}

/* The memory slices that instances hold, as bits; compute slices and instances of one profile on the way. */
static uint32_t taken(const sim_device *device, const sim_profile *profile, uint32_t *compute, uint32_t *alike)
{
    uint32_t bits = 0;
    *compute = *alike = 0;
    for (uint32_t i = 0; i < SIM_INSTANCES; i++) {
        const sim_gpu_instance *gi = &device->gpu_instances[i];
        if (!gi->serial)
            continue;
        const sim_profile *other = &device->profiles[gi->profile];
        bits |= ((1u << other->size) - 1) << gi->start;
        *compute += other->compute_slices;
        *alike += other == profile;
    }
    return bits;
}

/* Starts are equally long, so taking each free one in order packs as many as possible. */
API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t handle, unsigned id, unsigned *count)
{
    sim_target t;
    nvmlReturn_t code = enter_capable(__func__, handle, count, 1, &t);
    const sim_profile *profile = code ? 0 : by_id(t.device, id);
    if (!code && !profile)
        code = NVML_INVALID_ARGUMENT;
    if (code)
        return sim_end(code);
    uint32_t compute, alike, bits = taken(t.device, profile, &compute, &alike);
    *count = 0;
    for (uint32_t i = 0; i < profile->start_count; i++) {
        uint32_t mask = ((1u << profile->size) - 1) << profile->starts[i];
        compute += profile->compute_slices;
        if (bits & mask || compute > t.device->mig_compute_slices || alike >= profile->max_instances) {
            compute -= profile->compute_slices;
            continue;
        }
        bits |= mask;
        alike++;
        (*count)++;
    }
    return sim_end(NVML_SUCCESS);
}

/* The numbers that nvidia-smi shows: 0 for the whole GPU, 1 and 2 for its halves from the far end, then quarters. */
static uint32_t instance_id(const sim_device *device, const sim_profile *profile, uint32_t start)
{
    uint32_t axis = device->mig_memory_slices, size = profile->size;
    if (size >= axis)
        return 0;
    if (size * 2 == axis)
        return start == 0 ? 2 : 1;
    return axis / size - 1 + start / size;
}

/* start SIM_NONE: the first placement that is free. */
static nvmlReturn_t create(sim_target *t, unsigned id, uint32_t start, nvmlGpuInstance_t *out)
{
    const sim_profile *profile = by_id(t->device, id);
    if (!profile)
        return NVML_INVALID_ARGUMENT;
    uint32_t compute, alike, bits = taken(t->device, profile, &compute, &alike), known = 0, found = SIM_NONE;
    for (uint32_t i = profile->start_count; i-- > 0;) {
        if (start != SIM_NONE && profile->starts[i] != start)
            continue;
        known = 1;
        if (!(bits & ((1u << profile->size) - 1) << profile->starts[i]))
            found = profile->starts[i];
    }
    if (!known)
        return NVML_INVALID_ARGUMENT;
    if (found == SIM_NONE || alike >= profile->max_instances || compute + profile->compute_slices > t->device->mig_compute_slices)
        return NVML_INSUFFICIENT_RESOURCES;
    for (uint32_t i = 0; i < SIM_INSTANCES; i++) {
        sim_gpu_instance *gi = &t->device->gpu_instances[i];
        if (gi->serial)
            continue;
        *gi = (sim_gpu_instance){
            .serial = ++sim_state->serial,
            .id = instance_id(t->device, profile, found),
            .profile = (uint32_t)(profile - t->device->profiles),
            .start = found,
        };
        *out = sim_handle(KIND_GPU_INSTANCE, t->index, gi->serial);
        return NVML_SUCCESS;
    }
    return NVML_INSUFFICIENT_RESOURCES;
}

API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t handle, unsigned id, nvmlGpuInstance_t *out)
{
    sim_target t;
    nvmlReturn_t code = enter_capable(__func__, handle, out, 1, &t);
    return sim_end(code ? code : create(&t, id, SIM_NONE, out));
}

API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t handle, unsigned id, const nvmlPlacement_t *place, nvmlGpuInstance_t *out)
{
    sim_target t;
    nvmlReturn_t code = enter_capable(__func__, handle, place ? out : 0, 1, &t);
    if (!code && by_id(t.device, id) && by_id(t.device, id)->size != place->size)
        code = NVML_INVALID_ARGUMENT;
    return sim_end(code ? code : create(&t, id, place->start, out));
}

API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_gi(__func__, handle, &t);
    for (uint32_t i = 0; !code && i < SIM_INSTANCES; i++)
        if (t.device->compute_instances[i].serial && t.device->compute_instances[i].owner == t.gi->serial)
            code = NVML_IN_USE;
    if (!code)
        t.gi->serial = 0;
    return sim_end(code);
}

/* The caller's array must have room for instanceCount of the profile; count is only ever answered. */
API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t handle, unsigned id, nvmlGpuInstance_t *out, unsigned *count)
{
    sim_target t;
    nvmlReturn_t code = enter_capable(__func__, handle, out ? count : 0, 1, &t);
    const sim_profile *profile = code ? 0 : by_id(t.device, id);
    if (!code && !profile)
        code = NVML_INVALID_ARGUMENT;
    if (code)
        return sim_end(code);
    *count = 0;
    for (uint32_t i = 0; i < SIM_INSTANCES; i++) {
        const sim_gpu_instance *gi = &t.device->gpu_instances[i];
        if (gi->serial && &t.device->profiles[gi->profile] == profile)
            out[(*count)++] = sim_handle(KIND_GPU_INSTANCE, t.index, gi->serial);
    }
    return sim_end(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t handle, unsigned id, nvmlGpuInstance_t *out)
{
    sim_target t;
    nvmlReturn_t code = enter_capable(__func__, handle, out, 1, &t);
    if (code)
        return sim_end(code);
    for (uint32_t i = 0; i < SIM_INSTANCES; i++) {
        const sim_gpu_instance *gi = &t.device->gpu_instances[i];
        if (gi->serial && gi->id == id) {
            *out = sim_handle(KIND_GPU_INSTANCE, t.index, gi->serial);
            return sim_end(NVML_SUCCESS);
        }
    }
    return sim_end(NVML_NOT_FOUND);
}

API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *out)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_gi(__func__, handle, &t);
    if (!code && !out)
        code = NVML_INVALID_ARGUMENT;
    if (!code)
        *out = (nvmlGpuInstanceInfo_t){
            .device = sim_handle(KIND_DEVICE, t.index, 0),
            .id = t.gi->id,
            .profileId = t.device->profiles[t.gi->profile].id,
            .placement = {.start = t.gi->start, .size = t.device->profiles[t.gi->profile].size},
        };
    return sim_end(code);
}
