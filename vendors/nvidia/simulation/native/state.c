/* Finding, mapping and locking the state file; waiting for its changes; clocks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "session.h"
#include "sim.h"

sim_header *sim_state;

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
static int descriptor = -1;
static struct stat mapped;
static char folder[PATH_MAX];

/* $HAMI_SIM_NVML_STATE, or the file named "state" beside this library. */
static int state_path(char *path, size_t size)
{
    const char *given = getenv("HAMI_SIM_NVML_STATE");
    if (given && *given)
        return snprintf(path, size, "%s", given) < (int)size;
    Dl_info info;
    if (!dladdr((void *)&sim_state, &info) || !info.dli_fname)
        return 0;
    const char *slash = strrchr(info.dli_fname, '/');
    int folder = slash ? (int)(slash - info.dli_fname) + 1 : 0;
    return snprintf(path, size, "%.*sstate", folder, info.dli_fname) < (int)size;
}

static int readable(const sim_header *header, off_t size)
{
    return memcmp(header->magic, SIM_MAGIC, sizeof header->magic) == 0 && header->layout == SIM_LAYOUT &&
           header->size == sizeof(sim_header) && header->device_size == sizeof(sim_device) &&
           header->device_count <= SIM_DEVICES &&
           (size_t)size >= sizeof(sim_header) + (size_t)header->device_count * sizeof(sim_device);
}

/* An older mapping is left in place: another thread may be reading it while it waits out a delay. */
static nvmlReturn_t adopt(int fd, const struct stat *status, const char *path)
{
    void *map = MAP_FAILED;
    if ((size_t)status->st_size >= sizeof(sim_header))
        map = mmap(NULL, (size_t)status->st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED || !readable(map, status->st_size)) {
        if (map != MAP_FAILED)
            munmap(map, (size_t)status->st_size);
        close(fd);
        fprintf(stderr, "simulated NVML: %s is not a state file of layout %#x; create the simulation again\n", path, SIM_LAYOUT);
        return NVML_LIB_RM_VERSION_MISMATCH;
    }
    if (descriptor >= 0)
        close(descriptor);
    descriptor = fd;
    mapped = *status;
    sim_state = map;
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    return NVML_SUCCESS;
}

/* The library is unloaded, as a daemon does that opens NVML anew: what it holds of the process goes with it. */
__attribute__((destructor)) static void sim_unload(void)
{
    if (descriptor >= 0)
        close(descriptor);
    if (sim_state)
        munmap(sim_state, (size_t)mapped.st_size);
}

nvmlReturn_t sim_open(void)
{
    char path[PATH_MAX];
    struct stat status;
    if (!state_path(path, sizeof path))
        return NVML_DRIVER_NOT_LOADED;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NVML_DRIVER_NOT_LOADED;
    if (fstat(fd, &status) < 0) {
        close(fd);
        return NVML_DRIVER_NOT_LOADED;
    }
    if (sim_state && status.st_ino == mapped.st_ino && status.st_dev == mapped.st_dev) {
        close(fd);
        return NVML_SUCCESS;
    }
    return adopt(fd, &status, path);
}

const char *sim_folder(void)
{
    return folder;
}

/* flock keeps other processes out and falls with its holder; the mutex keeps out this process's threads. */
static void lock_file(void)
{
    while (descriptor >= 0 && flock(descriptor, LOCK_EX) < 0 && errno == EINTR)
        ;
}

static void unlock_file(void)
{
    if (descriptor >= 0)
        flock(descriptor, LOCK_UN);
}

void sim_lock(void)
{
    pthread_mutex_lock(&threads);
    lock_file();
}

void sim_unlock(void)
{
    unlock_file();
    pthread_mutex_unlock(&threads);
}

void sim_lock_threads(void)
{
    pthread_mutex_lock(&threads);
}

void sim_lock_rest(void)
{
    lock_file();
}

sim_device *sim_device_at(uint32_t index)
{
    return (sim_device *)((char *)sim_state + sizeof(sim_header)) + index;
}

int sim_present(uint32_t index)
{
    return index < sim_state->device_count && !sim_state->no_devices && !sim_device_at(index)->unplugged;
}

uint32_t sim_present_count(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < sim_state->device_count; i++)
        count += (uint32_t)sim_present(i);
    return count;
}

nvmlReturn_t sim_text(const char *text, char *out, unsigned length)
{
    if (!out)
        return NVML_INVALID_ARGUMENT;
    size_t size = strlen(text) + 1;
    if (length < size)
        return NVML_INSUFFICIENT_SIZE;
    memcpy(out, text, size);
    return NVML_SUCCESS;
}

static uint64_t microseconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

uint64_t sim_clock_ms(void)
{
    return microseconds(CLOCK_MONOTONIC) / 1000u;
}

uint64_t sim_time_us(void)
{
    return microseconds(CLOCK_REALTIME);
}

void sim_sleep_ms(uint32_t ms)
{
    struct timespec rest = {.tv_sec = ms / 1000u, .tv_nsec = (long)(ms % 1000u) * 1000000L};
    while (nanosleep(&rest, &rest) < 0 && errno == EINTR)
        ;
}

/* Writing through a map tells nobody, so whoever changes the state touches the file. */
int sim_changes(void)
{
    char path[32];
    int changes = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    if (changes >= 0 && inotify_add_watch(changes, path, IN_ATTRIB) < 0) {
        close(changes);
        changes = -1;
    }
    return changes;
}

void sim_await_change(int changes, uint32_t ms)
{
    char told[512];
    struct pollfd asked = {.fd = changes, .events = POLLIN};
    if (poll(&asked, 1, ms > INT_MAX ? INT_MAX : (int)ms) > 0)
        while (read(changes, told, sizeof told) > 0)
            ;
}
