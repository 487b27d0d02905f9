/* How busy a device is: utilization, power, clocks, temperature, processes. Idle and busy are all the model knows. */
#include <stddef.h>
#include <string.h>

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

/* What the device has drawn since the machine started, in millijoules: milliwatts times milliseconds are microjoules.
   Whoever changes its power notes what it had drawn by then. */
static uint64_t energy_uj(const sim_device *device)
{
    return device->energy_uj + power_mw(device) * (sim_clock_ms() - device->energy_at_ms);
}

GETTER(nvmlDeviceGetTotalEnergyConsumption, gpu, unsigned long long, energy_uj(t.device) / 1000);
GETTER(nvmlDeviceGetPowerUsage, gpu, unsigned, power_mw(t.device));
GETTER(nvmlDeviceGetEnforcedPowerLimit, gpu, unsigned, t.device->power_limit_mw);
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, gpu, unsigned, t.device->pcie_generation);
GETTER(nvmlDeviceGetCurrPcieLinkWidth, gpu, unsigned, t.device->pcie_width);
GETTER(nvmlDeviceGetPerformanceState, gpu, unsigned, busy(t.device) ? PSTATE_BUSY : PSTATE_IDLE);

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, unsigned sensor, unsigned *out)
{
    ENTER(gpu, handle, out);
    REQUIRE(sensor == 0, NVML_INVALID_ARGUMENT);
    *out = t.device->temperature + t.device->gpu_percent / 3;
    return NVML_SUCCESS;
}

/* An idle GPU clocks its cores down, its memory hardly. */
API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, unsigned type, unsigned *out)
{
    ENTER(gpu, handle, out);
    REQUIRE(type < CLOCK_COUNT, NVML_INVALID_ARGUMENT);
    if (type == CLOCK_MEMORY)
        *out = t.device->clock_memory_mhz;
    else
        *out = busy(t.device) ? t.device->clock_sm_mhz : t.device->clock_sm_mhz / 5;
    return NVML_SUCCESS;
}

/* Neither a MIG device nor a GPU in MIG mode has rates. */
API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *out)
{
    ENTER(gpu, handle, out);
    REQUIRE(!t.device->mig_current, NVML_NOT_SUPPORTED);
    *out = (nvmlUtilization_t){.gpu = t.device->gpu_percent, .memory = t.device->memory_percent};
    return NVML_SUCCESS;
}

static int belongs(const sim_process *process, const sim_target *t, unsigned kind)
{
    return process->kind == kind && (!t->ci || (process->gpu_instance == t->gi->id && process->compute_instance == t->ci->id));
}

/* A count of 0 asks for the number; the answer is then InsufficientSize when there are any. Of each process as many
   bytes are written as the caller's structure has. */
static nvmlReturn_t processes(const char *symbol, nvmlDevice_t handle, unsigned kind, unsigned *count, void *out, size_t size)
{
    ENTER_AS(symbol, device, handle, count);
    unsigned found = 0, room = *count;
    for (uint32_t i = 0; i < t.device->process_count && i < SIM_PROCESSES; i++) {
        const sim_process *process = &t.device->processes[i];
        if (!belongs(process, &t, kind))
            continue;
        nvmlProcessInfo_t info = {
            .pid = process->pid,
            .usedGpuMemory = process->used,
            .gpuInstanceId = process->gpu_instance,
            .computeInstanceId = process->compute_instance,
        };
        if (out && found < room)
            memcpy((char *)out + found * size, &info, size);
        found++;
    }
    *count = found;
    return found > room || (found && !out) ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* The three versions of a call: the first one's structure ends before the instances. */
#define PROCESSES(function, kind)                                                                                \
    API nvmlReturn_t function##_v3(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *out)                 \
    {                                                                                                            \
        return processes(#function "_v3", handle, kind, count, out, sizeof *out);                                \
    }                                                                                                            \
    API nvmlReturn_t function##_v2(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *out)                 \
    {                                                                                                            \
        return processes(#function "_v3", handle, kind, count, out, sizeof *out);                                \
    }                                                                                                            \
    API nvmlReturn_t function(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *out)                      \
    {                                                                                                            \
        return processes(#function "_v3", handle, kind, count, out, offsetof(nvmlProcessInfo_t, gpuInstanceId)); \
    }                                                                                                            \
    _Static_assert(1, "a semicolon follows")

PROCESSES(nvmlDeviceGetComputeRunningProcesses, PROCESS_COMPUTE);
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, PROCESS_GRAPHICS);
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, PROCESS_MPS);

/* How many samples are newer than a time of day in microseconds. They are as new as the call. */
static unsigned samples(const sim_device *device, uint64_t now, uint64_t since)
{
    unsigned found = device->process_count < SIM_PROCESSES ? device->process_count : SIM_PROCESSES;
    return since < now ? found : 0;
}

/* No samples at all is NotFound, as with the driver. */
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *out, unsigned *count,
                                                 uint64_t since)
{
    ENTER(gpu, handle, count);
    REQUIRE(!t.device->mig_current, NVML_NOT_SUPPORTED);
    uint64_t now = sim_time_us();
    unsigned found = samples(t.device, now, since);
    REQUIRE(found, NVML_NOT_FOUND);
    unsigned room = out ? *count : 0;
    *count = found;
    REQUIRE(found <= room, NVML_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < found; i++)
        out[i] = (nvmlProcessUtilizationSample_t){
            .pid = t.device->processes[i].pid,
            .timeStamp = now,
            .smUtil = t.device->processes[i].sm_percent,
            .memUtil = t.device->processes[i].memory_percent,
        };
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t handle, nvmlProcessesUtilizationInfo_v1_t *asked)
{
    ENTER(gpu, handle, asked);
    REQUIRE_VERSION(asked, nvmlProcessesUtilizationInfo_v1_t, 1);
    REQUIRE(!t.device->mig_current, NVML_NOT_SUPPORTED);
    uint64_t now = sim_time_us();
    unsigned found = samples(t.device, now, asked->lastSeenTimeStamp);
    REQUIRE(found, NVML_NOT_FOUND);
    unsigned room = asked->procUtilArray ? asked->processSamplesCount : 0;
    asked->processSamplesCount = found;
    REQUIRE(found <= room, NVML_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < found; i++)
        asked->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .pid = t.device->processes[i].pid,
            .timeStamp = now,
            .smUtil = t.device->processes[i].sm_percent,
            .memUtil = t.device->processes[i].memory_percent,
        };
    return NVML_SUCCESS;
}
