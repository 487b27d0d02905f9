/* What every entry point stands on: the mapped state, its lock, handles, and the gate that faults act at. */
#ifndef SIM_H
#define SIM_H

#include "nvml_abi.h"
#include "state.h"

enum { KIND_DEVICE = 0x11, KIND_MIG = 0x12, KIND_GPU_INSTANCE = 0x13, KIND_COMPUTE_INSTANCE = 0x14, KIND_EVENT_SET = 0x15 };

/* How long a wait sleeps between looks at the state file, where nothing tells of its changes. */
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

/* A MIG device's handle packs its slot instead, so the next one in that slot has the same. */
void *sim_mig_handle(uint32_t device, const sim_compute_instance *ci);
uint32_t sim_handle_kind(const void *handle);
uint32_t sim_handle_device(const void *handle);
uint32_t sim_handle_serial(const void *handle);

/* Every entry point: sim_begin or one of the sim_enter calls first, sim_end last, whatever they answered. Between the
   two the state is locked against threads and processes. BEGIN and ENTER, below, see to both. */
nvmlReturn_t sim_begin(const char *symbol);
nvmlReturn_t sim_end(nvmlReturn_t code);

/* The gate of one device: delays (which let go of the lock), injected failures, and loss. */
nvmlReturn_t sim_pass(const char *symbol, uint32_t index);

/* sim_begin, decoding a handle, and sim_pass in one. sim_enter_gpu refuses MIG devices with NotSupported. */
nvmlReturn_t sim_enter_device(const char *symbol, nvmlDevice_t handle, sim_target *target);
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

/* The folder of the state file, in which the machine's other files are too. */
const char *sim_folder(void);

/* A descriptor that tells when the state file was changed, or -1 where there is none to be had. */
int sim_changes(void);

/* Sleep until the state file was changed, ms at most. */
void sim_await_change(int changes, uint32_t ms);

/* For waiting. */
uint64_t sim_clock_ms(void);

/* The time of day in microseconds, which samples and field values have. */
uint64_t sim_time_us(void);

sim_device *sim_device_at(uint32_t index);
int sim_present(uint32_t index);
uint32_t sim_present_count(void);

/* Copies text with its terminator; InsufficientSize when it does not fit. */
nvmlReturn_t sim_text(const char *text, char *out, unsigned length);

static inline void sim_leave(const nvmlReturn_t *entered)
{
    sim_end(*entered);
}

/* How an entry point begins. What cannot be entered, or has no place for its answer (out), is answered at once.
   The function leaves again by itself, wherever it returns. */
#define OPEN(code, out)                                                      \
    __attribute__((cleanup(sim_leave))) const nvmlReturn_t entered = (code); \
    if (entered || !(out))                                                   \
        return entered ? entered : NVML_INVALID_ARGUMENT

/* Without a handle. */
#define BEGIN(out) OPEN(sim_begin(__func__), out)

/* By a handle, as t. The kinds are those of sim_enter: device (a MIG device, too), gpu, gi, ci. */
#define ENTER(kind, handle, out) ENTER_AS(__func__, kind, handle, out)
#define ENTER_AS(symbol, kind, handle, out) \
    sim_target t;                           \
    OPEN(sim_enter_##kind(symbol, handle, &t), out)

/* A condition of the call, and what it answers where that does not hold. */
#define REQUIRE(condition, code) \
    if (!(condition))            \
        return code

/* A right that the caller may lack. */
#define REQUIRE_RIGHT(right) REQUIRE(!(sim_state->withheld & (right)), NVML_NO_PERMISSION)

#define REQUIRE_VERSION(structure, type, number) \
    REQUIRE((structure)->version == STRUCT_VERSION(type, number), NVML_ARGUMENT_VERSION_MISMATCH)

/* An entry point that answers one number about t. */
#define GETTER(function, kind, type, expression)              \
    API nvmlReturn_t function(nvmlDevice_t handle, type *out) \
    {                                                         \
        ENTER(kind, handle, out);                             \
        *out = (type)(expression);                            \
        return NVML_SUCCESS;                                  \
    }                                                         \
    _Static_assert(1, "a semicolon follows")

#endif
