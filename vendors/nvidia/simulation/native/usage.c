/* How busy a device is: utilization, power, clocks, temperature, processes. Idle and busy are all the model knows. */
#include "sim.h"

enum { PSTATE_BUSY = 0, PSTATE_IDLE = 8, CLOCK_MEMORY = 2, CLOCK_COUNT = 4, PROCESS_COMPUTE = 0, PROCESS_GRAPHICS = 1, PROCESS_MPS = 2 };

static int busy(const sim_device *device)
{
    return device->gpu_percent || device->process_count;
}

static unsigned power_mw(const sim_device *device)
{
    return device->power_idle_mw + (device->power_limit_mw - device->power_idle_mw) / 100 * device->gpu_percent;
}

static nvmlReturn_t number(const char *symbol, nvmlDevice_t handle, unsigned *out, sim_target *t)
{
    nvmlReturn_t code = sim_enter_gpu(symbol, handle, t);
    return !code && !out ? NVML_INVALID_ARGUMENT : code;
}

#define GETTER(function, expression)                                 \
    API nvmlReturn_t function(nvmlDevice_t handle, unsigned *out)    \
    {                                                                \
        sim_target t;                                                \
        nvmlReturn_t code = number(__func__, handle, out, &t);       \
        if (!code)                                                   \
            *out = (expression);                                     \
        return sim_end(code);                                        \
    }                                                                \
    _Static_assert(1, "a semicolon follows")

GETTER(nvmlDeviceGetPowerUsage, power_mw(t.device));
GETTER(nvmlDeviceGetEnforcedPowerLimit, t.device->power_limit_mw);
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, t.device->pcie_generation);
GETTER(nvmlDeviceGetCurrPcieLinkWidth, t.device->pcie_width);
GETTER(nvmlDeviceGetPerformanceState, busy(t.device) ? PSTATE_BUSY : PSTATE_IDLE);

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, unsigned sensor, unsigned *out)
{
    sim_target t;
    nvmlReturn_t code = number(__func__, handle, out, &t);
    if (!code && sensor != 0)
        code = NVML_INVALID_ARGUMENT;
    if (!code)
        *out = t.device->temperature + t.device->gpu_percent / 3;
    return sim_end(code);
}

/* An idle GPU clocks its cores down, its memory hardly. */
API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, unsigned type, unsigned *out)
{
    sim_target t;
    nvmlReturn_t code = number(__func__, handle, out, &t);
    if (!code && type >= CLOCK_COUNT)
        code = NVML_INVALID_ARGUMENT;
    if (!code && type == CLOCK_MEMORY)
        *out = t.device->clock_memory_mhz;
    else if (!code)
        *out = busy(t.device) ? t.device->clock_sm_mhz : t.device->clock_sm_mhz / 5;
    return sim_end(code);
}

/* Neither a MIG device nor a GPU in MIG mode has rates. */
API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *out)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_gpu(__func__, handle, &t);
    if (!code && !out)
        code = NVML_INVALID_ARGUMENT;
    if (!code && t.device->mig_current)
        code = NVML_NOT_SUPPORTED;
    if (!code)
        *out = (nvmlUtilization_t){.gpu = t.device->gpu_percent, .memory = t.device->memory_percent};
    return sim_end(code);
}

static int belongs(const sim_process *process, const sim_target *t, unsigned kind)
{
    return process->kind == kind && (!t->ci || (process->gpu_instance == t->gi->id && process->compute_instance == t->ci->id));
}

/* A count of 0 asks for the number; the answer is then InsufficientSize when there are any. */
static nvmlReturn_t processes(const char *symbol, nvmlDevice_t handle, unsigned kind, unsigned *count, nvmlProcessInfo_t *out)
{
    sim_target t;
    nvmlReturn_t code = sim_enter(symbol, handle, &t);
    if (!code && !count)
        code = NVML_INVALID_ARGUMENT;
    if (code)
        return sim_end(code);
    unsigned found = 0;
    for (uint32_t i = 0; i < t.device->process_count && i < SIM_PROCESSES; i++) {
        const sim_process *process = &t.device->processes[i];
        if (!belongs(process, &t, kind))
            continue;
        if (out && found < *count)
            out[found] = (nvmlProcessInfo_t){
                .pid = process->pid,
                .usedGpuMemory = process->used,
                .gpuInstanceId = process->gpu_instance,
                .computeInstanceId = process->compute_instance,
            };
        found++;
    }
    code = found > *count || (found && !out) ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
    *count = found;
    return sim_end(code);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *out)
{
    return processes(__func__, handle, PROCESS_COMPUTE, count, out);
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *out)
{
    return processes(__func__, handle, PROCESS_GRAPHICS, count, out);
}

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *out)
{
    return processes(__func__, handle, PROCESS_MPS, count, out);
}

/* No samples at all is NotFound, as with the driver. Samples are as new as the call. */
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *out, unsigned *count,
                                                 uint64_t since)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_gpu(__func__, handle, &t);
    if (!code && !count)
        code = NVML_INVALID_ARGUMENT;
    if (!code && t.device->mig_current)
        code = NVML_NOT_SUPPORTED;
    uint64_t now = sim_clock_us();
    if (!code && (t.device->process_count == 0 || since >= now))
        code = NVML_NOT_FOUND;
    if (code)
        return sim_end(code);
    unsigned found = t.device->process_count < SIM_PROCESSES ? t.device->process_count : SIM_PROCESSES;
    if (!out || *count < found) {
        *count = found;
        return sim_end(NVML_INSUFFICIENT_SIZE);
    }
    for (unsigned i = 0; i < found; i++)
        out[i] = (nvmlProcessUtilizationSample_t){
            .pid = t.device->processes[i].pid,
            .timeStamp = now,
            .smUtil = t.device->processes[i].sm_percent,
            .memUtil = t.device->processes[i].memory_percent,
        };
    *count = found;
    return sim_end(NVML_SUCCESS);
}
