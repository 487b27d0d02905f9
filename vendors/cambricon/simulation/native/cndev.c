/* A CNDev of simulated MLUs, over files beside this library, so that processes share it and a killed one leaves it.

   smlu/<card>/memory is an MLU's memory in MiB, and smlu/<card>/on is there in sMLU mode. profiles/<id> has cores and
   MiB, instances/<id> its profile and serial number; used.<id> is there while somebody has the instance open.
   smlu/calls/<symbol> says once what becomes of a call: "fail <code>" before it, "then <code>" after it, "die". */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { VERSION = 6, MOST = 128, NAME = 100 };
enum {
    SUCCESS = 0,
    NO_DRIVER = 1,
    WRONG_VERSION = 3,
    UNINITIALIZED = 4,
    INVALID_ARGUMENT = 5,
    INVALID_DEVICE = 6,
    NO_ROOM = 9,
    UNSUPPORTED = 10,
    NOT_FOUND = 14,
    IN_USE = 15,
};

typedef struct {
    int version;
    unsigned number;
} card_count;

typedef struct {
    int32_t version;
    int32_t on;
} mode;

typedef struct {
    int32_t version;
    uint32_t cores;
    uint64_t memory;
} amounts;

typedef struct {
    int32_t version;
    int32_t count;
    int32_t ids[MOST];
} profile_ids;

typedef struct {
    int32_t version;
    int32_t id;
    char name[NAME];
    uint32_t total;
    uint32_t left;
    uint32_t cores[2];
    uint64_t memory[2];
} profile_info;

typedef struct {
    int32_t version;
    int32_t profile;
    int32_t id;
    uint8_t uuid[37];
    int32_t domain;
    int32_t bus;
    int32_t device;
    int32_t function;
    char profile_name[NAME];
    char name[NAME];
    char node[NAME];
    uint32_t cores[2];
    uint64_t memory[2];
    uint32_t reserved[128];
} instance_info;

static char root[PATH_MAX];
static int initialised;

__attribute__((constructor)) static void find_root(void)
{
    Dl_info info;
    if (!dladdr((void *)&find_root, &info) || !info.dli_fname)
        return;
    snprintf(root, sizeof root, "%s", info.dli_fname);
    char *slash = strrchr(root, '/');
    snprintf(slash ? slash : root, 2, "%s", slash ? "" : ".");
}

__attribute__((format(printf, 2, 3))) static const char *place(char *path, const char *format, ...)
{
    va_list arguments;
    size_t length = (size_t)snprintf(path, PATH_MAX, "%s/", root);
    va_start(arguments, format);
    vsnprintf(path + length, PATH_MAX - length, format, arguments);
    va_end(arguments);
    return path;
}

static int there(const char *path)
{
    return access(path, F_OK) == 0;
}

static int numbers(const char *path, uint64_t *first, uint64_t *second)
{
    FILE *file = fopen(path, "re");
    unsigned long a = 0, b = 0;
    int found = file ? fscanf(file, "%lu %lu", &a, &b) : 0;
    if (file)
        fclose(file);
    *first = a;
    *second = b;
    return found;
}

static int put(const char *path, uint64_t first, uint64_t second)
{
    FILE *file = fopen(path, "we");
    if (!file)
        return 0;
    fprintf(file, "%lu %lu\n", (unsigned long)first, (unsigned long)second);
    return fclose(file) == 0;
}

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* The files of a folder that are named by a number, in order. */
static int ids_of(const char *path, int *ids)
{
    DIR *folder = opendir(path);
    int count = 0;
    struct dirent *one;
    while (folder && count < MOST && (one = readdir(folder))) {
        char *end;
        long id = strtol(one->d_name, &end, 10);
        if (end != one->d_name && !*end)
            ids[count++] = (int)id;
    }
    if (folder)
        closedir(folder);
    qsort(ids, (size_t)count, sizeof *ids, ascending);
    return count;
}

static int first_free(const int *ids, int count, int from)
{
    int id = from;
    for (int i = 0; i < count; i++)
        id += ids[i] == id;
    return id;
}

/* What was ordered of a call, once. The code to answer, or -1 to go on. */
static int ordered(const char *symbol, const char *when)
{
    char path[PATH_MAX], word[8] = "";
    int code = 0;
    FILE *file = fopen(place(path, "smlu/calls/%s", symbol), "re");
    if (!file)
        return -1;
    int found = fscanf(file, "%7s %d", word, &code);
    fclose(file);
    if (found < 1 || strcmp(word, when))
        return -1;
    unlink(path);
    if (!strcmp(word, "die"))
        raise(SIGKILL);
    return code;
}

static int locked(void)
{
    char path[PATH_MAX];
    int lock = open(place(path, "smlu/.lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock >= 0)
        flock(lock, LOCK_EX);
    return lock;
}

/* How every entry point begins, and how it ends. */
#define BEGIN                                                            \
    __attribute__((cleanup(unlocked))) int lock = locked();              \
    int answer;                                                          \
    if (lock < 0)                                                        \
        return NO_DRIVER;                                                \
    if (!initialised)                                                    \
        return UNINITIALIZED;                                            \
    ordered(__func__, "die");                                            \
    if ((answer = ordered(__func__, "fail")) >= 0)                       \
        return answer
#define END return (answer = ordered(__func__, "then")) >= 0 ? answer : SUCCESS
#define REQUIRE(condition, code) \
    if (!(condition))            \
        return code

static void unlocked(const int *lock)
{
    if (*lock >= 0)
        close(*lock);
}

static int known(int card)
{
    char path[PATH_MAX];
    return there(place(path, "smlu/%d/memory", card));
}

static int on(int card)
{
    char path[PATH_MAX];
    return there(place(path, "smlu/%d/on", card));
}

static int profile_of(int card, int id, uint64_t *cores, uint64_t *memory)
{
    char path[PATH_MAX];
    return numbers(place(path, "smlu/%d/profiles/%d", card, id), cores, memory) == 2;
}

/* What an MLU has left. */
static void room_of(int card, uint64_t *cores, uint64_t *memory)
{
    char path[PATH_MAX];
    int ids[MOST], count = ids_of(place(path, "smlu/%d/instances", card), ids);
    uint64_t none;
    numbers(place(path, "smlu/%d/memory", card), memory, &none);
    *cores = 100;
    for (int i = 0; i < count; i++) {
        uint64_t profile, serial, own_cores, own_memory;
        numbers(place(path, "smlu/%d/instances/%d", card, ids[i]), &profile, &serial);
        profile_of(card, (int)profile, &own_cores, &own_memory);
        *cores -= own_cores < *cores ? own_cores : *cores;
        *memory -= own_memory < *memory ? own_memory : *memory;
    }
}

static uint64_t left_of(int card, uint64_t cores, uint64_t memory)
{
    uint64_t free_cores, free_memory;
    room_of(card, &free_cores, &free_memory);
    uint64_t by_cores = cores ? free_cores / cores : 0, by_memory = memory ? free_memory / memory : 0;
    return by_cores < by_memory ? by_cores : by_memory;
}

API const char *cndevGetErrorString(int code)
{
    static const char *const words[] = {
        [SUCCESS] = "Cndev_SUCCESS",
        [NO_DRIVER] = "Cndev_ERROR_NO_DRIVER",
        [WRONG_VERSION] = "Cndev_ERROR_UNSUPPORTED_API_VERSION",
        [UNINITIALIZED] = "Cndev_ERROR_UNINITIALIZED",
        [INVALID_ARGUMENT] = "Cndev_ERROR_INVALID_ARGUMENT",
        [INVALID_DEVICE] = "Cndev_ERROR_INVALID_DEVICE_ID",
        [NO_ROOM] = "Cndev_ERROR_INSUFFICIENT_SPACE",
        [UNSUPPORTED] = "Cndev_ERROR_NOT_SUPPORTED",
        [NOT_FOUND] = "Cndev_ERROR_NOT_FOUND",
        [IN_USE] = "Cndev_ERROR_IN_USE",
    };
    size_t count = sizeof words / sizeof *words;
    return code >= 0 && (size_t)code < count && words[code] ? words[code] : "Cndev_ERROR not found!";
}

API int cndevInit(int reserved)
{
    char path[PATH_MAX];
    (void)reserved;
    REQUIRE(there(place(path, "smlu")), NO_DRIVER);
    int answer = ordered(__func__, "fail");
    REQUIRE(answer < 0, answer);
    initialised = 1;
    return SUCCESS;
}

API int cndevGetDeviceCount(card_count *out)
{
    BEGIN;
    REQUIRE(out->version == VERSION, WRONG_VERSION);
    for (out->number = 0; known((int)out->number); out->number++)
        ;
    END;
}

API int cndevGetDeviceHandleByIndex(int index, int32_t *handle)
{
    BEGIN;
    REQUIRE(known(index), INVALID_DEVICE);
    *handle = index;
    END;
}

API int cndevGetSMLUMode(mode *out, int32_t card)
{
    BEGIN;
    REQUIRE(out->version == VERSION, WRONG_VERSION);
    REQUIRE(known(card), INVALID_DEVICE);
    out->on = on(card);
    END;
}

API int cndevGetSMluProfileIdInfo(profile_ids *out, int32_t card)
{
    char path[PATH_MAX];
    BEGIN;
    REQUIRE(out->version == VERSION, WRONG_VERSION);
    REQUIRE(known(card), INVALID_DEVICE);
    out->count = ids_of(place(path, "smlu/%d/profiles", card), out->ids);
    END;
}

API int cndevGetSMluProfileInfo(profile_info *out, int32_t profile, int32_t card)
{
    uint64_t cores, memory;
    BEGIN;
    REQUIRE(out->version == VERSION, WRONG_VERSION);
    REQUIRE(profile_of(card, profile, &cores, &memory), NOT_FOUND);
    out->id = profile;
    snprintf(out->name, sizeof out->name, "%lu.smlu.%lumb", (unsigned long)cores, (unsigned long)memory);
    out->left = (uint32_t)left_of(card, cores, memory);
    out->total = out->left;
    out->cores[0] = (uint32_t)cores;
    out->memory[0] = memory << 20;
    END;
}

API int cndevCreateSMluProfileInfo(amounts *wanted, int32_t *profile, int32_t card)
{
    char path[PATH_MAX];
    int ids[MOST];
    BEGIN;
    REQUIRE(wanted->version == VERSION, WRONG_VERSION);
    REQUIRE(on(card), UNSUPPORTED);
    uint64_t memory = wanted->memory >> 20;
    REQUIRE(wanted->cores >= 1 && wanted->cores <= 100 && memory, INVALID_ARGUMENT);
    REQUIRE(left_of(card, wanted->cores, memory), NO_ROOM);
    int count = ids_of(place(path, "smlu/%d/profiles", card), ids);
    for (int i = 0; i < count; i++) {
        uint64_t cores, size;
        profile_of(card, ids[i], &cores, &size);
        REQUIRE(cores != wanted->cores || size != memory, INVALID_ARGUMENT);
    }
    REQUIRE(count < MOST, NO_ROOM);
    *profile = first_free(ids, count, 0);
    put(place(path, "smlu/%d/profiles/%d", card, *profile), wanted->cores, memory);
    END;
}

API int cndevDestroySMluProfileInfo(int32_t profile, int32_t card)
{
    char path[PATH_MAX];
    int ids[MOST];
    BEGIN;
    int count = ids_of(place(path, "smlu/%d/instances", card), ids);
    for (int i = 0; i < count; i++) {
        uint64_t own, serial;
        numbers(place(path, "smlu/%d/instances/%d", card, ids[i]), &own, &serial);
        REQUIRE(own != (uint64_t)profile, IN_USE);
    }
    REQUIRE(unlink(place(path, "smlu/%d/profiles/%d", card, profile)) == 0, NOT_FOUND);
    END;
}

API int cndevCreateSMluInstanceByProfileId(int32_t *made, unsigned profile, int32_t card, char *name)
{
    char path[PATH_MAX];
    int ids[MOST];
    uint64_t cores, memory, serial, none;
    (void)name;
    BEGIN;
    REQUIRE(on(card), UNSUPPORTED);
    REQUIRE(profile_of(card, (int)profile, &cores, &memory), NOT_FOUND);
    REQUIRE(left_of(card, cores, memory), NO_ROOM);
    int id = first_free(ids, ids_of(place(path, "smlu/%d/instances", card), ids), 1);
    numbers(place(path, "smlu/serial"), &serial, &none);
    put(path, serial + 1, 0);
    put(place(path, "smlu/%d/instances/%d", card, id), profile, serial);
    mkdir(place(path, "dev/cambricon-caps"), 0755);
    put(place(path, "dev/cambricon-caps/cap_dev%d_mi%d", card, id), 0, 0);
    *made = id << 8 | card;
    END;
}

API int cndevDestroySMluInstanceByHandle(int32_t handle)
{
    char path[PATH_MAX];
    int card = handle & 0xff, id = handle >> 8;
    BEGIN;
    REQUIRE(there(place(path, "smlu/%d/instances/%d", card, id)), NOT_FOUND);
    REQUIRE(!there(place(path, "smlu/%d/used.%d", card, id)), IN_USE);
    unlink(place(path, "smlu/%d/instances/%d", card, id));
    unlink(place(path, "dev/cambricon-caps/cap_dev%d_mi%d", card, id));
    END;
}

API int cndevGetAllSMluInstanceInfo(int *count, instance_info *out, int32_t card)
{
    char path[PATH_MAX];
    int ids[MOST];
    BEGIN;
    REQUIRE(out->version == VERSION, WRONG_VERSION);
    REQUIRE(known(card), INVALID_DEVICE);
    int room = *count;
    *count = ids_of(place(path, "smlu/%d/instances", card), ids);
    REQUIRE(*count <= room, NO_ROOM);
    for (int i = 0; i < *count; i++) {
        instance_info *one = out + i;
        uint64_t profile, serial, cores, memory;
        numbers(place(path, "smlu/%d/instances/%d", card, ids[i]), &profile, &serial);
        profile_of(card, (int)profile, &cores, &memory);
        memset(one, 0, sizeof *one);
        one->profile = (int32_t)profile;
        one->id = ids[i];
        snprintf((char *)one->uuid, sizeof one->uuid, "%08x-5a1a-4000-8000-%012x", (unsigned)serial, (unsigned)card);
        snprintf(one->profile_name, NAME, "%lu.smlu.%lumb", (unsigned long)cores, (unsigned long)memory);
        snprintf(one->node, NAME, "/dev/cambricon-caps/cap_dev%d_mi%d", card, ids[i]);
        one->cores[0] = (uint32_t)cores;
        one->memory[0] = memory << 20;
    }
    END;
}
