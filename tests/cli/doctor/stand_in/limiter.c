/* In place of HAMi-core: preloaded into every dynamic program, it puts itself before the driver by way of dlsym. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static size_t used;

static size_t limit(void)
{
    const char *text = getenv("CUDA_DEVICE_MEMORY_LIMIT_0");
    return text ? strtoul(text, NULL, 10) << 20 : 0;
}

static void *driver(const char *name)
{
    static void *(*real)(void *, const char *);
    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return real(dlopen("libcuda.so.1", RTLD_LAZY), name);
}

static int alloc(uint64_t *pointer, size_t size)
{
    if (limit() && used + size > limit())
        return 2;
    int code = ((int (*)(uint64_t *, size_t))driver("cuMemAlloc_v2"))(pointer, size);
    used += code ? 0 : size;
    return code;
}

static int info(size_t *free, size_t *total)
{
    *total = limit();
    *free = *total - used;
    return 0;
}

static int release(uint64_t pointer)
{
    used = 0;
    return ((int (*)(uint64_t))driver("cuMemFree_v2"))(pointer);
}

void *dlsym(void *handle, const char *name)
{
    static void *(*real)(void *, const char *);
    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!strcmp(name, "cuMemAlloc_v2"))
        return (void *)alloc;
    if (!strcmp(name, "cuMemGetInfo_v2"))
        return (void *)info;
    if (!strcmp(name, "cuMemFree_v2"))
        return (void *)release;
    return real(handle, name);
}
