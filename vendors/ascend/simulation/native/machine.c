/* Reading the text file that lies beside the library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "machine.h"

static int read_units(FILE *file, struct machine *m)
{
    for (int i = 0; i < m->count; i++) {
        struct unit *u = &m->units[i];
        int got = fscanf(file, " npu %d %d %31s %d %u %u %u %u %u %u %u %x:%x:%x.%x %u %x %d %d %d %d %d", &u->card, &u->chip,
                         u->name, &u->cores, &u->logical, &u->physical, &u->die[0], &u->die[1], &u->die[2], &u->die[3],
                         &u->die[4], &u->domain, &u->bus, &u->device, &u->function, &u->health, &u->error, &u->code,
                         &u->hangs, &u->shared, &u->busy, &u->used);
        if (got != 22)
            return INNER_ERROR;
    }
    for (int i = 0; i < m->count * m->count; i++)
        if (fscanf(file, " %d", &m->kinds[i]) != 1)
            return INNER_ERROR;
    return m->code;
}

int beside(char *path, int size, const char *name)
{
    Dl_info here;
    if (!dladdr((void *)read_machine, &here))
        return INNER_ERROR;
    const char *end = strrchr(here.dli_fname, '/');
    int length = end ? (int)(end - here.dli_fname) : 0;
    snprintf(path, size, "%.*s/%s", length, here.dli_fname, name);
    return OK;
}

int read_machine(struct machine *m)
{
    char path[PATH_MAX];
    if (beside(path, sizeof path, "npus"))
        return INNER_ERROR;
    FILE *file = fopen(path, "r");
    if (!file)
        return INNER_ERROR;
    int code = INNER_ERROR;
    if (fscanf(file, " driver %31s %d units %d", m->version, &m->code, &m->count) == 3 && m->count >= 0 &&
        m->count <= MOST_UNITS)
        code = read_units(file, m);
    fclose(file);
    return code;
}

struct unit *find(struct machine *m, int card, int chip)
{
    for (int i = 0; i < m->count; i++)
        if (m->units[i].card == card && m->units[i].chip == chip)
            return &m->units[i];
    return NULL;
}

int ask(struct machine *m, int card, int chip, struct unit **unit)
{
    for (;;) {
        int code = read_machine(m);
        if (code)
            return code;
        *unit = find(m, card, chip);
        if (!*unit)
            return NO_DEVICE;
        if (!(*unit)->hangs)
            return (*unit)->code;
        usleep(2000);
    }
}
