/* libcuda.so.1 of the simulated driver: enough to count and name devices. */
#define _GNU_SOURCE
#include "machine.h"

#include <dlfcn.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_UNKNOWN = 999,
};

typedef struct {
    char bytes[16];
} CUuuid;

EXPORT int cuInit(unsigned flags);
EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDeviceGetName(char *name, int length, int device);
EXPORT int cuDeviceGetUuid(CUuuid *uuid, int device);
EXPORT int cuDeviceGetUuid_v2(CUuuid *uuid, int device);

static struct sim_machine machine;
static int reachable[SIM_MAX_GPUS];
static int reachable_count;
static int ready;

static int load(void) {
    Dl_info info;
    return dladdr((void *)cuInit, &info) && !sim_load(info.dli_fname, &machine);
}

int cuInit(unsigned flags) {
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!load())
        return CUDA_ERROR_UNKNOWN;
    if (sim_probe_ctl(&machine) != SIM_PERMITTED)
        return CUDA_ERROR_NO_DEVICE;
    if (sim_probe_uvm(&machine) != SIM_PERMITTED)
        return CUDA_ERROR_UNKNOWN;
    reachable_count = 0;
    for (unsigned i = 0; i < machine.count; i++)
        if (machine.gpus[i].status == SIM_OK &&
            sim_probe_gpu(&machine, &machine.gpus[i]) == SIM_PERMITTED)
            reachable[reachable_count++] = (int)i;
    ready = reachable_count > 0;
    return ready ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* As in the real library this works without cuInit. */
int cuDriverGetVersion(int *version) {
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    if (!ready && !load())
        return CUDA_ERROR_UNKNOWN;
    *version = (int)machine.cuda_version;
    return CUDA_SUCCESS;
}

int cuDeviceGetCount(int *count) {
    if (!ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = reachable_count;
    return CUDA_SUCCESS;
}

static int device_error(const void *out, int device) {
    if (!ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    return device < 0 || device >= reachable_count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
    int rc = device_error(device, ordinal);
    if (!rc)
        *device = ordinal;
    return rc;
}

int cuDeviceGetName(char *name, int length, int device) {
    int rc = device_error(name, device);
    if (rc || length < 1)
        return rc ? rc : CUDA_ERROR_INVALID_VALUE;
    strncpy(name, machine.gpus[reachable[device]].model, (size_t)length - 1);
    name[length - 1] = '\0';
    return CUDA_SUCCESS;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int cuDeviceGetUuid(CUuuid *uuid, int device) {
    int rc = device_error(uuid, device), digits = 0;
    if (rc)
        return rc;
    memset(uuid, 0, sizeof *uuid);
    /* GPU- holds no lower-case hex digit. */
    for (const char *c = machine.gpus[reachable[device]].uuid; *c && digits < 32; c++) {
        int value = hex_digit(*c);
        if (value < 0)
            continue;
        uuid->bytes[digits / 2] = (char)(uuid->bytes[digits / 2] << 4 | value);
        digits++;
    }
    return CUDA_SUCCESS;
}

int cuDeviceGetUuid_v2(CUuuid *uuid, int device) {
    return cuDeviceGetUuid(uuid, device);
}
