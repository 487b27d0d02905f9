/* Finding instances in the state file. */
#include "sim.h"

sim_gpu_instance *sim_find_gi(sim_device *device, uint32_t serial)
{
    for (uint32_t i = 0; serial && i < SIM_INSTANCES; i++)
        if (device->gpu_instances[i].serial == serial)
            return &device->gpu_instances[i];
    return 0;
}

sim_compute_instance *sim_find_ci(sim_device *device, uint32_t serial)
{
    for (uint32_t i = 0; serial && i < SIM_INSTANCES; i++)
        if (device->compute_instances[i].serial == serial)
            return &device->compute_instances[i];
    return 0;
}

/* What a MIG device has of whole, which counts something of the full GPU's multiprocessors. */
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
