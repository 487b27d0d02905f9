/* A process that counts its memory as HAMi-core does, in a region of any of the five layouts, mapped and shared.
   region_writer LAYOUT FILE MIB UUID [crash]: it takes a slot, holds so many MiB of the card, and prints its limit in
   MiB whenever that changes, until SIGTERM. With crash it dies amid a change of its own counters. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 19920718, NONE = -1, ALL = 16 };

struct layout {
    const char *name;
    size_t size;
    uint32_t minor; /* 0: without a version */
    int devices, processes_at, count, slot, used, status, seqlock;
};

static const struct layout layouts[] = {
    {"v0a", 804680, 0, 48, 1848, 804664, 784, 8, 776, NONE},
    {"v0", 1197896, 0, 48, 1848, 1197880, 1168, 8, 1160, NONE},
    {"v1.1", 2008952, 1, 56, 1856, 2008896, 1960, 8, 1928, NONE},
    {"v1.1s", 2008984, 1, 88, 1888, 2008928, 1960, 16, 1936, 8},
    {"v1.2", 2008952, 2, 56, 1856, 2008896, 1960, 8, 1928, 1936},
};

static volatile sig_atomic_t ending;

static void end(int signal)
{
    (void)signal;
    ending = 1;
}

static uint64_t limit_of_environment(void)
{
    const char *text = getenv("CUDA_DEVICE_MEMORY_LIMIT_0");
    return text ? strtoull(text, NULL, 10) << 20 : 0;
}

static void initialise(uint8_t *region, const struct layout *layout, const char *uuid)
{
    uint32_t version[2] = {1, layout->minor};
    int32_t tail[4] = {0, 1, 0, 1}; /* processes, switch, recent kernel, priority */
    uint64_t one = 1, limit = limit_of_environment(), cores = 100;
    if (layout->minor)
        memcpy(region + 4, version, sizeof version);
    memcpy(region + layout->devices, &one, 8);
    strncpy((char *)region + layout->devices + 8, uuid, 95);
    memcpy(region + layout->devices + 8 + 96 * ALL, &limit, 8);
    memcpy(region + layout->devices + 8 + 104 * ALL, &cores, 8);
    memcpy(region + layout->count, tail, sizeof tail);
    __atomic_store_n((int32_t *)region, MAGIC, __ATOMIC_RELEASE);
}

static uint8_t *joined(const struct layout *layout, const char *path, const char *uuid)
{
    umask(0);
    int file = open(path, O_RDWR | O_CREAT, 0666);
    if (file < 0 || lockf(file, F_LOCK, (off_t)layout->size) || pwrite(file, "", 1, (off_t)layout->size) != 1)
        return NULL;
    uint8_t *region = mmap(NULL, layout->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (region == MAP_FAILED)
        return NULL;
    if (__atomic_load_n((int32_t *)region, __ATOMIC_ACQUIRE) != MAGIC)
        initialise(region, layout, uuid);
    lseek(file, 0, SEEK_SET);
    return lockf(file, F_ULOCK, (off_t)layout->size) ? NULL : region;
}

static void bump(uint8_t *slot, const struct layout *layout)
{
    if (layout->seqlock != NONE)
        __atomic_fetch_add((uint64_t *)(slot + layout->seqlock), 1, __ATOMIC_SEQ_CST);
}

/* context, module, data, offset, total */
static void hold(uint8_t *slot, const struct layout *layout, uint64_t bytes, int crash)
{
    uint64_t *used = (uint64_t *)(slot + layout->used);
    bump(slot, layout);
    used[2] = bytes;
    if (crash)
        raise(SIGKILL);
    used[4] = bytes;
    bump(slot, layout);
}

int main(int count, char **words)
{
    const struct layout *layout = NULL;
    for (size_t i = 0; count >= 5 && i < sizeof layouts / sizeof *layouts; i++)
        if (!strcmp(layouts[i].name, words[1]))
            layout = &layouts[i];
    uint8_t *region = layout ? joined(layout, words[2], words[4]) : NULL;
    if (!region)
        return 1;
    signal(SIGTERM, end);
    int32_t *number = (int32_t *)(region + layout->count);
    uint8_t *slot = region + layout->processes_at + (size_t)layout->slot * (size_t)(*number)++;
    int32_t pid = getpid(), running = 1;
    memcpy(slot, &pid, 4);
    memcpy(slot + layout->status, &running, 4);
    uint64_t bytes = strtoull(words[3], NULL, 10) << 20;
    hold(slot, layout, bytes, 0);
    if (count > 5)
        hold(slot, layout, 2 * bytes, 1);
    volatile uint64_t *limit = (volatile uint64_t *)(region + layout->devices + 8 + 96 * ALL);
    uint64_t last = UINT64_MAX;
    while (!ending) {
        if (*limit != last) {
            last = *limit;
            printf("limit %llu\n", (unsigned long long)(last >> 20));
            fflush(stdout);
        }
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    memset(slot, 0, 4);
    memset(slot + layout->status, 0, 4);
    return 0;
}
