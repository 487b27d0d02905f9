/* The machine as its text file says, and the questions that every function of DCMI asks of it. */
#ifndef MACHINE_H
#define MACHINE_H

#define MOST_UNITS 64

enum { OK = 0, INVALID_PARAMETER = -8001, INNER_ERROR = -8005, NO_DEVICE = -8008, OCCUPIED = -8020, NOT_SUPPORTED = -8255 };

struct unit {
    int card, chip, cores, code, hangs, shared, busy, used;
    unsigned logical, physical, health, error, die[5], domain, bus, device, function;
    char name[32];
};

struct machine {
    int code, count;
    char version[32];
    struct unit units[MOST_UNITS];
    int kinds[MOST_UNITS * MOST_UNITS];
};

/* The machine of this moment. Answers what DCMI answers to every question at present. */
int read_machine(struct machine *m);

/* The path of a file beside the library. */
int beside(char *path, int size, const char *name);

struct unit *find(struct machine *m, int card, int chip);

/* The gate that every question about one NPU passes: one that hangs answers when the file says that it does so again. */
int ask(struct machine *m, int card, int chip, struct unit **unit);

#endif
