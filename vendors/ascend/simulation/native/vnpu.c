/* Virtual NPUs. A file beside the library has a line for each, "card chip id template used", so that they outlive every
 * program, and another one an order, "create before": what becomes of the next call of that kind. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "machine.h"

#define API __attribute__((visibility("default")))
#define MOST 32

struct vnpu {
    int card, chip, used;
    unsigned id;
    char template[32];
};

struct vnpus {
    int count, lock;
    struct vnpu of[MOST * MOST_UNITS];
};

struct asked {
    unsigned id, group;
    char template[32];
    unsigned char reserved[64];
};

struct made {
    unsigned id, bus, device, function, group;
    unsigned char reserved[32];
};

struct total {
    unsigned count, ids[MOST];
    unsigned char rest[228];
};

struct query {
    unsigned id, padding;
    char name[16];
    unsigned status, used;
    unsigned char rest[232];
};

static int take(struct vnpus *all)
{
    char path[PATH_MAX];
    if (beside(path, sizeof path, ".vnpus"))
        return INNER_ERROR;
    all->lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (all->lock < 0 || flock(all->lock, LOCK_EX))
        return INNER_ERROR;
    all->count = 0;
    beside(path, sizeof path, "vnpus");
    FILE *file = fopen(path, "r");
    struct vnpu *v = all->of;
    while (file && all->count < MOST * MOST_UNITS &&
           fscanf(file, "%d %d %u %31s %d", &v->card, &v->chip, &v->id, v->template, &v->used) == 5)
        v = &all->of[++all->count];
    if (file)
        fclose(file);
    return OK;
}

static int give(struct vnpus *all, int changed)
{
    char path[PATH_MAX], part[PATH_MAX];
    beside(path, sizeof path, "vnpus");
    beside(part, sizeof part, "vnpus.part");
    FILE *file = changed ? fopen(part, "w") : NULL;
    for (int i = 0; file && i < all->count; i++) {
        struct vnpu *v = &all->of[i];
        fprintf(file, "%d %d %u %s %d\n", v->card, v->chip, v->id, v->template, v->used);
    }
    if (file) {
        fclose(file);
        rename(part, path);
    }
    close(all->lock);
    return OK;
}

/* What was ordered of this call, once: a failure, or the end of this process and of the one that it works for. */
static int ordered(const char *call, const char *when)
{
    char path[PATH_MAX], name[32] = "", moment[32] = "";
    beside(path, sizeof path, "order");
    FILE *file = fopen(path, "r");
    if (!file)
        return OK;
    int got = fscanf(file, "%31s %31s", name, moment);
    fclose(file);
    int dies = !strncmp(moment, "die-", 4);
    if (got != 2 || strcmp(name, call) || strcmp(moment + (dies ? 4 : 0), when))
        return OK;
    unlink(path);
    if (dies) {
        kill(getppid(), SIGKILL);
        kill(getpid(), SIGKILL);
    }
    return INNER_ERROR;
}

static void node(unsigned id, int there)
{
    char name[64], path[PATH_MAX];
    snprintf(name, sizeof name, "dev/vdavinci%u", id);
    beside(path, sizeof path, name);
    if (!there)
        unlink(path);
    else
        close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
}

static int cores(const char *template)
{
    return atoi(template + 3);
}

static struct vnpu *of_id(struct vnpus *all, int card, int chip, unsigned id)
{
    for (int i = 0; i < all->count; i++)
        if (all->of[i].card == card && all->of[i].chip == chip && all->of[i].id == id)
            return &all->of[i];
    return NULL;
}

API int dcmi_get_device_info(int card, int chip, int kind, unsigned what, void *answer, unsigned *size)
{
    struct machine m;
    struct unit *u;
    struct vnpus all;
    int code = ask(&m, card, chip, &u);
    if (!code && kind != 52)
        code = NOT_SUPPORTED;
    if (!code)
        code = ordered("list", "before");
    if (code || (code = take(&all)))
        return code;
    if (what == 1 && *size == sizeof(struct total)) {
        struct total *t = answer;
        memset(t, 0, sizeof *t);
        for (int i = 0; i < all.count; i++)
            if (all.of[i].card == card && all.of[i].chip == chip)
                t->ids[t->count++] = all.of[i].id;
    } else if (what == 0 && *size == sizeof(struct query)) {
        struct query *q = answer;
        struct vnpu *v = of_id(&all, card, chip, q->id);
        if (v) {
            memcpy(q->name, v->template, sizeof q->name);
            q->used = (unsigned)v->used;
        }
        code = v ? OK : NO_DEVICE;
    } else {
        code = INVALID_PARAMETER;
    }
    give(&all, 0);
    return code;
}

API int dcmi_create_vdevice(int card, int chip, struct asked *asked, struct made *made)
{
    struct machine m;
    struct unit *u;
    struct vnpus all;
    int code = ask(&m, card, chip, &u), there = 0;
    if (!code)
        code = ordered("create", "before");
    if (code || (code = take(&all)))
        return code;
    for (int i = 0; i < all.count; i++)
        if (all.of[i].card == card && all.of[i].chip == chip)
            there += cores(all.of[i].template);
    unsigned id = 100 + 16 * u->physical;
    while (of_id(&all, card, chip, id))
        id++;
    if (strncmp(asked->template, "vir", 3) || there + cores(asked->template) > u->cores) {
        give(&all, 0);
        return INVALID_PARAMETER;
    }
    struct vnpu *v = &all.of[all.count++];
    *v = (struct vnpu){.card = card, .chip = chip, .id = id};
    memcpy(v->template, asked->template, sizeof v->template - 1);
    memset(made, 0, sizeof *made);
    made->id = id;
    node(id, 1);
    give(&all, 1);
    return ordered("create", "after");
}

API int dcmi_set_destroy_vdevice(int card, int chip, unsigned id)
{
    struct machine m;
    struct unit *u;
    struct vnpus all;
    int code = ask(&m, card, chip, &u);
    if (!code)
        code = ordered("destroy", "before");
    if (code || (code = take(&all)))
        return code;
    struct vnpu *v = of_id(&all, card, chip, id);
    if (!v || v->used) {
        give(&all, 0);
        return v ? OCCUPIED : NO_DEVICE;
    }
    node(id, 0);
    *v = all.of[--all.count];
    give(&all, 1);
    return ordered("destroy", "after");
}
