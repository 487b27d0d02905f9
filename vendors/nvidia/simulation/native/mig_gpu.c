/* GPU instances: capacity, creation, lookup and destruction. */
#include "mig.h"
#include "sim.h"

/* Enters a GPU in MIG mode, by the id of one of its profiles. */
#define ENTER_PROFILE(handle, id, out)                            \
    ENTER(gpu, handle, out);                                      \
    REQUIRE_RIGHT(RIGHT_CONFIG);                                  \
    REQUIRE(t.device->mig_current, NVML_NOT_SUPPORTED);           \
    const sim_profile *profile = sim_profile_by_id(t.device, id); \
    REQUIRE(profile, NVML_INVALID_ARGUMENT)

/* What instances hold: memory slices as bits, how many compute slices, and how many of them are of one profile. */
typedef struct {
    uint32_t bits, compute, alike;
} holding;

static holding taken(const sim_device *device, const sim_profile *profile)
{
    holding all = {0, 0, 0};
    FOR_LIVE(gi, device->gpu_instances) {
        const sim_profile *other = &device->profiles[gi->profile];
        all.bits |= sim_run(gi->start, other->size);
        all.compute += other->compute_slices;
        all.alike += other == profile;
    }
    return all;
}

/* Whether one more instance fits, at this start. */
static int fits(const sim_device *device, const sim_profile *profile, const holding *all, uint32_t start)
{
    return !(all->bits & sim_run(start, profile->size)) && all->alike < profile->max_instances &&
           all->compute + profile->compute_slices <= device->mig_compute_slices;
}

/* Starts are equally long, so taking each free one in order packs as many as possible. */
API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t handle, unsigned id, unsigned *count)
{
    ENTER_PROFILE(handle, id, count);
    holding all = taken(t.device, profile);
    *count = 0;
    for (uint32_t i = 0; i < profile->start_count; i++) {
        if (!fits(t.device, profile, &all, profile->starts[i]))
            continue;
        all.bits |= sim_run(profile->starts[i], profile->size);
        all.compute += profile->compute_slices;
        all.alike++;
        (*count)++;
    }
    return NVML_SUCCESS;
}

/* The numbers of a tree: 0 for the whole GPU, 1 and 2 for its halves, then quarters, and so on. */
static uint32_t instance_id(const sim_device *device, const sim_profile *profile, uint32_t start)
{
    return device->mig_memory_slices / profile->size - 1 + start / profile->size;
}

/* The first free start of the profile, or SIM_NONE. */
static uint32_t free_start(const sim_device *device, const sim_profile *profile)
{
    holding all = taken(device, profile);
    for (uint32_t i = 0; i < profile->start_count; i++)
        if (fits(device, profile, &all, profile->starts[i]))
            return profile->starts[i];
    return SIM_NONE;
}

static int offers(const sim_profile *profile, uint32_t start)
{
    for (uint32_t i = 0; i < profile->start_count; i++)
        if (profile->starts[i] == start)
            return 1;
    return 0;
}

static nvmlReturn_t create(const sim_target *t, const sim_profile *profile, uint32_t start, nvmlGpuInstance_t *out)
{
    holding all = taken(t->device, profile);
    REQUIRE(start != SIM_NONE && fits(t->device, profile, &all, start), NVML_INSUFFICIENT_RESOURCES);
    sim_gpu_instance *gi = t->device->gpu_instances, *end = gi + SIM_INSTANCES;
    while (gi < end && gi->serial)
        gi++;
    REQUIRE(gi < end, NVML_INSUFFICIENT_RESOURCES);
    *gi = (sim_gpu_instance){
        .serial = ++sim_state->serial,
        .id = instance_id(t->device, profile, start),
        .profile = (uint32_t)(profile - t->device->profiles),
        .start = start,
    };
    sim_show_capability(t->device, gi, 0);
    *out = sim_handle(KIND_GPU_INSTANCE, t->index, gi->serial);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t handle, unsigned id, nvmlGpuInstance_t *out)
{
    ENTER_PROFILE(handle, id, out);
    return create(&t, profile, free_start(t.device, profile), out);
}

API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t handle, unsigned id, const nvmlPlacement_t *place, nvmlGpuInstance_t *out)
{
    ENTER_PROFILE(handle, id, place ? out : 0);
    REQUIRE(profile->size == place->size && offers(profile, place->start), NVML_INVALID_ARGUMENT);
    return create(&t, profile, place->start, out);
}

API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle)
{
    ENTER(gi, handle, 1);
    REQUIRE_RIGHT(RIGHT_CONFIG);
    FOR_LIVE(ci, t.device->compute_instances)
        REQUIRE(ci->owner != t.gi->serial, NVML_IN_USE);
    REQUIRE(!t.gi->held && !sim_users(t.device, t.gi, 0), NVML_IN_USE);
    sim_hide_capability(t.device, t.gi, 0);
    t.gi->serial = 0;
    return NVML_SUCCESS;
}

/* The caller's array must have room for instanceCount of the profile; count is only ever answered. */
API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t handle, unsigned id, nvmlGpuInstance_t *out, unsigned *count)
{
    ENTER_PROFILE(handle, id, out ? count : 0);
    *count = 0;
    FOR_LIVE(gi, t.device->gpu_instances)
        if (&t.device->profiles[gi->profile] == profile)
            out[(*count)++] = sim_handle(KIND_GPU_INSTANCE, t.index, gi->serial);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t handle, unsigned id, nvmlGpuInstance_t *out)
{
    ENTER(gpu, handle, out);
    REQUIRE_RIGHT(RIGHT_CONFIG);
    REQUIRE(t.device->mig_current, NVML_NOT_SUPPORTED);
    FOR_LIVE(gi, t.device->gpu_instances)
        if (gi->id == id) {
            *out = sim_handle(KIND_GPU_INSTANCE, t.index, gi->serial);
            return NVML_SUCCESS;
        }
    return NVML_NOT_FOUND;
}

API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *out)
{
    ENTER(gi, handle, out);
    const sim_profile *profile = &t.device->profiles[t.gi->profile];
    *out = (nvmlGpuInstanceInfo_t){
        .device = sim_handle(KIND_DEVICE, t.index, 0),
        .id = t.gi->id,
        .profileId = profile->id,
        .placement = {.start = t.gi->start, .size = profile->size},
    };
    return NVML_SUCCESS;
}
