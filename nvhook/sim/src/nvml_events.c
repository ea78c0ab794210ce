/* NVML's events: Xids that the state file says have happened, each told once to each event set.
 *
 * A wait blocks. As with a real driver it ends at once where a GPU of the set is lost, and a program
 * that only tries again spins.
 */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOOK_EVERY_US 20000

enum { EVENT_SINGLE_BIT_ECC = 1, EVENT_DOUBLE_BIT_ECC = 2, EVENT_XID = 8 };

struct event_set {
    int registered[SIM_MAX_GPUS];
    unsigned told[SIM_MAX_GPUS];
};

struct event_data {
    Device device;
    unsigned long long type, data;
    unsigned gi, ci;
};

EXPORT int nvmlEventSetCreate(struct event_set **set);
EXPORT int nvmlEventSetFree(struct event_set *set);
EXPORT int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout);
EXPORT int nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long *types);
EXPORT int nvmlDeviceRegisterEvents(Device device, unsigned long long types, struct event_set *set);

int nvmlEventSetCreate(struct event_set **set) {
    if (!set)
        return NVML_ERROR_INVALID_ARGUMENT;
    *set = calloc(1, sizeof **set);
    return *set ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

int nvmlEventSetFree(struct event_set *set) {
    free(set);
    return NVML_SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long *types) {
    int rc = check(device, types);
    if (!rc)
        *types = EVENT_SINGLE_BIT_ECC | EVENT_DOUBLE_BIT_ECC | EVENT_XID;
    return rc;
}

static struct sim_machine *now(int *rc) {
    struct sim_machine *read = malloc(sizeof *read);
    *rc = read ? load(read) : NVML_ERROR_UNKNOWN;
    return read;
}

int nvmlDeviceRegisterEvents(Device device, unsigned long long types, struct event_set *set) {
    int rc = check(device, set);
    if (rc || !types || mig_of(device))
        return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
    struct sim_machine *read = now(&rc);
    if (!rc && types & EVENT_XID) {
        size_t index = (size_t)(gpu_of(device) - machine.gpus);
        set->registered[index] = 1;
        set->told[index] = read->gpus[index].xid_count; /* not what was before */
    }
    free(read);
    return rc;
}

/* The next event of those GPUs that fail, or of those that do not. */
static int next_of(struct event_set *set, const struct sim_machine *read, int failing,
                   struct event_data *data) {
    for (unsigned i = 0; i < machine.count; i++) {
        const struct sim_gpu *gpu = &read->gpus[i];
        if (!set->registered[i] || (error_of(gpu) != NVML_SUCCESS) != failing)
            continue;
        if (set->told[i] < gpu->xid_count) {
            const struct sim_xid *xid = &gpu->xids[set->told[i]++];
            *data = (struct event_data){&machine.gpus[i], EVENT_XID, xid->number, xid->gi, xid->ci};
            return NVML_SUCCESS;
        }
        if (set->told[i] > gpu->xid_count) /* the state file was written anew */
            set->told[i] = gpu->xid_count;
    }
    return NVML_ERROR_TIMEOUT;
}

/* A lost GPU's last words come before the error, and no other GPU's while it is in the set. */
static int look(struct event_set *set, struct event_data *data) {
    int rc;
    struct sim_machine *read = now(&rc);
    if (!rc)
        rc = next_of(set, read, 1, data);
    for (unsigned i = 0; rc == NVML_ERROR_TIMEOUT && i < machine.count; i++)
        if (set->registered[i] && error_of(&read->gpus[i]))
            rc = error_of(&read->gpus[i]);
    if (rc == NVML_ERROR_TIMEOUT)
        rc = next_of(set, read, 0, data);
    free(read);
    return rc;
}

static long long milliseconds(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000LL + at.tv_nsec / 1000000;
}

static int unchanged(struct stat *before) {
    struct stat st;
    if (stat(machine.state_path, &st))
        memset(&st, 0, sizeof st);
    int same = st.st_ino == before->st_ino && st.st_size == before->st_size &&
               !memcmp(&st.st_mtim, &before->st_mtim, sizeof st.st_mtim);
    *before = st;
    return same;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout) {
    struct stat state = {0};
    long long end = milliseconds() + timeout;
    if (!set || !data)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int first = 1;; first = 0) {
        int rc = unchanged(&state) && !first ? NVML_ERROR_TIMEOUT : look(set, data);
        if (rc != NVML_ERROR_TIMEOUT || milliseconds() >= end)
            return rc;
        usleep(LOOK_EVERY_US);
    }
}
