/* Finding instances and profiles in the state file. */
#include "mig.h"

sim_gpu_instance *sim_find_gi(sim_device *device, uint32_t serial)
{
    FOR_LIVE(gi, device->gpu_instances)
        if (gi->serial == serial)
            return gi;
    return 0;
}

sim_compute_instance *sim_find_ci(sim_device *device, uint32_t serial)
{
    FOR_LIVE(ci, device->compute_instances)
        if (ci->serial == serial)
            return ci;
    return 0;
}

uint32_t sim_ci_share(const sim_device *device, const sim_compute_instance *ci, uint32_t whole)
{
    if (!ci || !device->multiprocessors)
        return whole;
    const sim_gpu_instance *gi = sim_find_gi((sim_device *)device, ci->owner);
    if (!gi)
        return whole;
    const sim_profile *profile = &device->profiles[gi->profile];
    return whole / device->multiprocessors * (profile->multiprocessors * ci->slices / profile->compute_slices);
}

const sim_profile *sim_profile_by_id(const sim_device *device, unsigned id)
{
    for (uint32_t i = 0; i < device->profile_count; i++)
        if (device->profiles[i].id == id)
            return &device->profiles[i];
    return 0;
}
