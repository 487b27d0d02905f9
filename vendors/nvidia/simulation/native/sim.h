/* What every entry point stands on: the mapped state, its lock, handles, and the gate that faults act at. */
#ifndef SIM_H
#define SIM_H

#include "nvml_abi.h"
#include "state.h"

enum { KIND_DEVICE = 0x11, KIND_MIG = 0x12, KIND_GPU_INSTANCE = 0x13, KIND_COMPUTE_INSTANCE = 0x14, KIND_EVENT_SET = 0x15 };

/* How long a wait sleeps between looks at the state file. */
#define SIM_TICK_MS 5
#define SIM_IDLE_TICK_MS 20

/* What a handle stands for. gi and ci are set for MIG devices and instances only. */
typedef struct {
    uint32_t index;
    sim_device *device;
    sim_gpu_instance *gi;
    sim_compute_instance *ci;
} sim_target;

extern sim_header *sim_state;

/* A handle packs kind, device and instance serial. A destroyed instance's serial is never used again. */
void *sim_handle(uint32_t kind, uint32_t device, uint32_t serial);
uint32_t sim_handle_kind(const void *handle);
uint32_t sim_handle_device(const void *handle);
uint32_t sim_handle_serial(const void *handle);

/* Every entry point: sim_begin or one of the sim_enter calls first, sim_end last, whatever they answered. Between the
   two the state is locked against threads and processes. */
nvmlReturn_t sim_begin(const char *symbol);
nvmlReturn_t sim_end(nvmlReturn_t code);

/* The gate of one device: delays (which let go of the lock), injected failures, and loss. */
nvmlReturn_t sim_pass(const char *symbol, uint32_t index);

/* sim_begin, decoding a handle, and sim_pass in one. sim_enter_gpu refuses MIG devices with NotSupported. */
nvmlReturn_t sim_enter(const char *symbol, nvmlDevice_t handle, sim_target *target);
nvmlReturn_t sim_enter_gpu(const char *symbol, nvmlDevice_t handle, sim_target *target);
nvmlReturn_t sim_enter_gi(const char *symbol, nvmlGpuInstance_t handle, sim_target *target);
nvmlReturn_t sim_enter_ci(const char *symbol, nvmlComputeInstance_t handle, sim_target *target);

/* The same for a second handle of a call that sim_enter_gpu has opened. */
nvmlReturn_t sim_also(const char *symbol, nvmlDevice_t handle, sim_target *target);

/* sim_begin without its delay: for waits that look again and again. */
nvmlReturn_t sim_again(const char *symbol);

/* The code injected for a symbol and a device (or SIM_NONE), or Success. */
nvmlReturn_t sim_injected(const char *symbol, uint32_t device);

void sim_sleep_ms(uint32_t ms);
uint64_t sim_clock_ms(void);
uint64_t sim_clock_us(void);

sim_device *sim_device_at(uint32_t index);
int sim_present(uint32_t index);
uint32_t sim_present_count(void);

/* Copies text with its terminator; InsufficientSize when it does not fit. */
nvmlReturn_t sim_text(const char *text, char *out, unsigned length);

/* mig_state.c */
sim_gpu_instance *sim_find_gi(sim_device *device, uint32_t serial);
sim_compute_instance *sim_find_ci(sim_device *device, uint32_t serial);
uint32_t sim_ci_share(const sim_device *device, const sim_compute_instance *ci, uint32_t whole);

#endif
