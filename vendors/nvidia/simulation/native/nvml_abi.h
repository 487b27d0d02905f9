/* The part of NVML's binary interface that the simulation offers: return codes, structures, constants.
   Sizes are those of x86-64 and aarch64; a structure with a version word carries its size in it. */
#ifndef NVML_ABI_H
#define NVML_ABI_H

#include <stdint.h>

#define API __attribute__((visibility("default")))
#define ALIAS(name, target) extern __typeof__(target) name __attribute__((alias(#target), visibility("default")))

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0, NVML_UNINITIALIZED = 1, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7, NVML_DRIVER_NOT_LOADED = 9, NVML_TIMEOUT = 10, NVML_GPU_IS_LOST = 15,
    NVML_RESET_REQUIRED = 16, NVML_LIB_RM_VERSION_MISMATCH = 18, NVML_IN_USE = 19, NVML_INSUFFICIENT_RESOURCES = 23,
    NVML_ARGUMENT_VERSION_MISMATCH = 25,
};

/* Handles are opaque numbers, never addresses: see sim.h. */
typedef struct nvmlDevice *nvmlDevice_t;
typedef struct nvmlEventSet *nvmlEventSet_t;
typedef struct nvmlGpuInstance *nvmlGpuInstance_t;
typedef struct nvmlComputeInstance *nvmlComputeInstance_t;
_Static_assert(sizeof(void *) == 8, "handles are 64 bits wide");

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define STRUCT_VERSION(type, number) ((unsigned)(sizeof(type) | (unsigned)(number) << 24))

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
SIZE(nvmlPciInfo_t, 68);

typedef struct {
    uint64_t total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    uint64_t total, reserved, free, used;
} nvmlMemory_v2_t;
SIZE(nvmlMemory_v2_t, 40);

typedef struct {
    uint64_t total, free, used;
} nvmlBAR1Memory_t;

typedef struct {
    unsigned version, value;
} nvmlDeviceAddressingMode_t;

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

/* Of the second version and the third. The first ends before the instances. */
typedef struct {
    unsigned pid;
    uint64_t usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
SIZE(nvmlProcessInfo_t, 24);

typedef struct {
    unsigned pid;
    uint64_t timeStamp;
    unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;
SIZE(nvmlProcessUtilizationSample_t, 32);

typedef struct {
    uint64_t timeStamp;
    unsigned pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;
SIZE(nvmlProcessUtilizationInfo_v1_t, 40);

typedef struct {
    unsigned version, processSamplesCount;
    uint64_t lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;
SIZE(nvmlProcessesUtilizationInfo_v1_t, 24);

typedef struct {
    nvmlDevice_t device;
    uint64_t eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;
SIZE(nvmlEventData_t, 32);

typedef struct {
    uint32_t fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    union {
        double dVal;
        unsigned uiVal;
        uint64_t ullVal;
    } value;
} nvmlFieldValue_t;
SIZE(nvmlFieldValue_t, 40);

typedef struct {
    unsigned version;
    uint8_t clusterUuid[16];
    nvmlReturn_t status;
    uint32_t cliqueId, state, healthMask;
} nvmlGpuFabricInfo_v2_t;
SIZE(nvmlGpuFabricInfo_v2_t, 36);

typedef struct {
    unsigned version;
    uint8_t clusterUuid[16];
    nvmlReturn_t status;
    uint32_t cliqueId, state, healthMask;
    uint8_t healthSummary;
} nvmlGpuFabricInfo_v3_t;

typedef struct {
    unsigned id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount;
    unsigned decoderCount, encoderCount, jpegCount, ofaCount;
    uint64_t memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;
SIZE(nvmlGpuInstanceProfileInfo_t, 48);

typedef struct {
    unsigned version;
    unsigned id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount;
    unsigned decoderCount, encoderCount, jpegCount, ofaCount;
    uint64_t memorySizeMB;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;
SIZE(nvmlGpuInstanceProfileInfo_v2_t, 152);

typedef struct {
    unsigned start, size;
} nvmlPlacement_t;

typedef struct {
    nvmlDevice_t device;
    unsigned id, profileId;
    nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    unsigned id, sliceCount, instanceCount, multiprocessorCount;
    unsigned sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
    unsigned version;
    nvmlComputeInstanceProfileInfo_t v1;
    char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;
SIZE(nvmlComputeInstanceProfileInfo_v2_t, 136);

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned id, profileId;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount;
    unsigned sharedJpegCount, sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    uint64_t memorySizeMB;
} nvmlDeviceAttributes_t;
SIZE(nvmlDeviceAttributes_t, 40);

#endif
