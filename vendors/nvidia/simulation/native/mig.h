/* What the questions about MIG share: instances and profiles in the state file. */
#ifndef MIG_H
#define MIG_H

#include "state.h"

/* Runs its body for each live instance (one) of those slots. */
#define FOR_LIVE(one, slots)                                                        \
    for (__typeof__(&*(slots)) one = (slots); one < (slots) + SIM_INSTANCES; one++) \
        if (one->serial)

/* What the compute instances of a GPU instance share: the same fields in each structure that tells of it. */
#define SHARED_ENGINES(profile)                                                                  \
    .sharedCopyEngineCount = (profile)->copy_engines, .sharedDecoderCount = (profile)->decoders, \
    .sharedEncoderCount = (profile)->encoders, .sharedJpegCount = (profile)->jpegs,              \
    .sharedOfaCount = (profile)->ofas

sim_gpu_instance *sim_find_gi(sim_device *device, uint32_t serial);
sim_compute_instance *sim_find_ci(sim_device *device, uint32_t serial);

/* What a MIG device has of whole, which counts something of the full GPU's multiprocessors. */
uint32_t sim_ci_share(const sim_device *device, const sim_compute_instance *ci, uint32_t whole);

/* By the id that a profile's description carries; 0 when this model has none such. */
const sim_profile *sim_profile_by_id(const sim_device *device, unsigned id);

/* Make the files and nodes of an instance's capability, or remove them: of the GPU instance where ci is 0. */
void sim_show_capability(const sim_device *device, const sim_gpu_instance *gi, const sim_compute_instance *ci);
void sim_hide_capability(const sim_device *device, const sim_gpu_instance *gi, const sim_compute_instance *ci);

/* How many processes have an instance open: any of the GPU instance where ci is 0. */
uint32_t sim_users(const sim_device *device, const sim_gpu_instance *gi, const sim_compute_instance *ci);

/* So many bits from start on: the slices of an instance. */
static inline uint32_t sim_run(uint32_t start, uint32_t length)
{
    return ((1u << length) - 1) << start;
}

#endif
