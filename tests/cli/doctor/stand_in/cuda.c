/* In place of the driver's libcuda.so.1: one device of 8 GiB, which refuses only what is larger. */
#include <stddef.h>
#include <stdint.h>

#define TOTAL ((size_t)8 << 30)

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(uintptr_t)(device + 1); return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device < 0; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 201; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = TOTAL; return 0; }
int cuMemAlloc_v2(uint64_t *pointer, size_t size) { *pointer = 4096; return size > TOTAL ? 2 : 0; }
int cuMemFree_v2(uint64_t pointer) { return pointer != 4096; }
