/* Between state.c and session.c only: opening the file, and the two halves of the lock. */
#ifndef SESSION_H
#define SESSION_H

#include "nvml_abi.h"

nvmlReturn_t sim_open(void);
void sim_lock(void);
void sim_unlock(void);

/* For init: threads first, then, once the file is open, the file. sim_unlock undoes both. */
void sim_lock_threads(void);
void sim_lock_rest(void);

#endif
