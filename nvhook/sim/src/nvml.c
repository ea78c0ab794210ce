/* libnvidia-ml.so.1 of the simulated driver: what nvidia-ml-py needs to list GPUs and MIG devices,
 * and to see a GPU fail.
 *
 * Which GPUs count is settled at nvmlInit, by opening their nodes. The state file is read again at
 * every call for a device, so that a GPU can be lost while a program runs.
 * Source of names, numbers and layouts: NVIDIA's NVML API reference.
 */
#define _GNU_SOURCE
#include "nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { BRAND_TESLA = 2, BRAND_GEFORCE = 5, BRAND_NVIDIA_RTX = 13, BRAND_NVIDIA = 14 };

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    unsigned gpu_instance_slices, compute_instance_slices;
    unsigned long long memory_mib;
};

EXPORT int nvmlInitWithFlags(unsigned flags);
EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT const char *nvmlErrorString(int result);
EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned length);
EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned length);
EXPORT int nvmlSystemGetCudaDriverVersion(int *version);
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version);
EXPORT int nvmlDeviceGetCount_v2(unsigned *count);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device);
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device);
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Device *device);
EXPORT int nvmlDeviceGetName(Device device, char *name, unsigned length);
EXPORT int nvmlDeviceGetUUID(Device device, char *uuid, unsigned length);
EXPORT int nvmlDeviceGetMinorNumber(Device device, unsigned *minor);
EXPORT int nvmlDeviceGetIndex(Device device, unsigned *index);
EXPORT int nvmlDeviceGetPciInfo_v3(Device device, struct pci_info *pci);
EXPORT int nvmlDeviceGetMemoryInfo(Device device, struct memory *memory);
EXPORT int nvmlDeviceGetMemoryInfo_v2(Device device, struct memory_v2 *memory);
EXPORT int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending);
EXPORT int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count);
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *mig);
EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device mig, Device *device);
EXPORT int nvmlDeviceIsMigDeviceHandle(Device device, unsigned *is_mig);
EXPORT int nvmlDeviceGetGpuInstanceId(Device mig, unsigned *id);
EXPORT int nvmlDeviceGetComputeInstanceId(Device mig, unsigned *id);
EXPORT int nvmlDeviceGetAttributes_v2(Device mig, struct attributes *attributes);
EXPORT int nvmlDeviceGetBrand(Device device, unsigned *brand);
EXPORT int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor);
EXPORT int nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *celsius);

struct sim_machine machine;
static unsigned reachable[SIM_MAX_GPUS];
static unsigned reachable_count;
static unsigned initialized; /* nvmlInit may be called more than once; each wants its nvmlShutdown */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int load(struct sim_machine *into) {
    Dl_info info;
    if (!dladdr((void *)nvmlInit_v2, &info) || sim_load(info.dli_fname, into))
        return NVML_ERROR_UNKNOWN;
    while (into->nvml == SIM_HANGING)
        pause();
    return into->nvml == SIM_STORM ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

static int start(void) {
    if (load(&machine))
        return NVML_ERROR_UNKNOWN;
    switch (sim_probe_ctl(&machine)) {
    case SIM_PERMITTED:
        break;
    case SIM_MISSING:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    default: /* as seen in a container whose device rules were dropped */
        return NVML_ERROR_UNKNOWN;
    }
    reachable_count = 0;
    for (unsigned i = 0; i < machine.count; i++)
        if (sim_probe_gpu(&machine, &machine.gpus[i]) == SIM_PERMITTED)
            reachable[reachable_count++] = i;
    return NVML_SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    int rc = initialized ? NVML_SUCCESS : start();
    if (!rc)
        initialized++;
    pthread_mutex_unlock(&lock);
    return rc;
}

int nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int rc = initialized ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (initialized)
        initialized--;
    pthread_mutex_unlock(&lock);
    return rc;
}

const char *nvmlErrorString(int result) {
    switch (result) {
    case NVML_SUCCESS:
        return "success";
    case NVML_ERROR_UNINITIALIZED:
        return "not initialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "invalid argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "not supported";
    case NVML_ERROR_NO_PERMISSION:
        return "no permission";
    case NVML_ERROR_NOT_FOUND:
        return "not found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "buffer too small";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "driver not loaded";
    case NVML_ERROR_TIMEOUT:
        return "timeout";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    default:
        return "unknown error";
    }
}

static int text_out(const char *from, char *to, unsigned length) {
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(from) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    struct sim_machine *now = malloc(sizeof *now);
    int rc = now ? load(now) : NVML_ERROR_UNKNOWN;
    free(now);
    return rc ? rc : text_out(machine.driver_version, version, length);
}

int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    char text[40];
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    snprintf(text, sizeof text, "%u.%s", machine.cuda_version / 1000, machine.driver_version);
    return text_out(text, version, length);
}

int nvmlSystemGetCudaDriverVersion(int *version) {
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    *version = (int)machine.cuda_version;
    return NVML_SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = reachable_count;
    return NVML_SUCCESS;
}

struct sim_gpu *gpu_of(Device device) {
    const char *at = device, *first = (const char *)machine.gpus;
    if (at < first || at >= (const char *)(machine.gpus + machine.count))
        return NULL;
    return &machine.gpus[(size_t)(at - first) / sizeof *machine.gpus];
}

struct sim_mig *mig_of(Device device) {
    struct sim_gpu *gpu = gpu_of(device);
    return gpu && (void *)gpu != device ? device : NULL;
}

/* Whether a call for a device may go on: the arguments are sound and the GPU is still there. */
int check(Device device, const void *out) {
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    const struct sim_gpu *gpu = gpu_of(device);
    if (!out || !gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct sim_machine *now = malloc(sizeof *now);
    int rc = now ? load(now) : NVML_ERROR_UNKNOWN;
    if (!rc) {
        const struct sim_gpu *as_it_is = &now->gpus[gpu - machine.gpus];
        struct sim_gpu *ours = &machine.gpus[gpu - machine.gpus];
        ours->mig_mode = as_it_is->mig_mode;
        ours->recovery = as_it_is->recovery;
        ours->rows = as_it_is->rows;
        rc = error_of(as_it_is);
    }
    free(now);
    return rc;
}

int error_of(const struct sim_gpu *gpu) {
    switch (gpu->status) {
    case SIM_OK:
        return NVML_SUCCESS;
    case SIM_LOST:
        return NVML_ERROR_GPU_IS_LOST;
    default:
        return NVML_ERROR_UNKNOWN;
    }
}

static int check_mig(Device device, const void *out) {
    int rc = check(device, out);
    return !rc && !mig_of(device) ? NVML_ERROR_INVALID_ARGUMENT : rc;
}

static int handle_of(Device from, Device *device) {
    int rc = check(from, device);
    if (!rc)
        *device = from;
    return rc;
}

static int handle(unsigned position, Device *device) {
    return handle_of(&machine.gpus[reachable[position]], device);
}

static int is_usable(const struct sim_mig *mig) {
    return mig->uuid[0] && sim_probe_mig(&machine, mig) == SIM_PERMITTED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    return index < reachable_count ? handle(index, device) : NVML_ERROR_INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    if (!uuid)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < reachable_count; i++)
        if (!strcmp(machine.gpus[reachable[i]].uuid, uuid))
            return handle(i, device);
    for (unsigned i = 0; i < reachable_count; i++)
        for (unsigned j = 0; j < SIM_MAX_MIG; j++) {
            struct sim_mig *mig = &machine.gpus[reachable[i]].mig[j];
            if (!strcmp(mig->uuid, uuid) && is_usable(mig))
                return handle_of(mig, device);
        }
    return NVML_ERROR_NOT_FOUND;
}

int bus_numbers(const char *text, unsigned *domain, unsigned *bus, unsigned *device) {
    return sscanf(text, "%x:%x:%x", domain, bus, device) == 3;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Device *device) {
    unsigned want[3], have[3];
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    if (!bus_id || !bus_numbers(bus_id, &want[0], &want[1], &want[2]))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < reachable_count; i++)
        if (bus_numbers(machine.gpus[reachable[i]].bus, &have[0], &have[1], &have[2]) &&
            !memcmp(want, have, sizeof want))
            return handle(i, device);
    return NVML_ERROR_NOT_FOUND;
}

int nvmlDeviceGetName(Device device, char *name, unsigned length) {
    char text[160];
    int rc = check(device, name);
    if (rc)
        return rc;
    const struct sim_mig *mig = mig_of(device);
    snprintf(text, sizeof text, "%s%s%s", gpu_of(device)->model, mig ? " MIG " : "",
             mig ? mig->profile : "");
    return text_out(text, name, length);
}

int nvmlDeviceGetUUID(Device device, char *uuid, unsigned length) {
    int rc = check(device, uuid);
    if (rc)
        return rc;
    return text_out(mig_of(device) ? mig_of(device)->uuid : gpu_of(device)->uuid, uuid, length);
}

int nvmlDeviceGetMinorNumber(Device device, unsigned *minor) {
    int rc = check(device, minor);
    if (!rc)
        *minor = gpu_of(device)->minor;
    return rc;
}

int nvmlDeviceGetIndex(Device device, unsigned *index) {
    int rc = check(device, index);
    for (unsigned i = 0; !rc && i < reachable_count; i++)
        if (&machine.gpus[reachable[i]] == gpu_of(device))
            *index = i;
    for (unsigned i = 0, position = 0; !rc && mig_of(device) && i < SIM_MAX_MIG; i++)
        if (is_usable(&gpu_of(device)->mig[i])) {
            if (&gpu_of(device)->mig[i] == mig_of(device))
                *index = position;
            position++;
        }
    return rc;
}

int nvmlDeviceGetPciInfo_v3(Device device, struct pci_info *pci) {
    int rc = check(device, pci);
    if (rc)
        return rc;
    fill_pci(gpu_of(device)->bus, gpu_of(device)->device_id, pci);
    return NVML_SUCCESS;
}

void fill_pci(const char *bus, unsigned device_id, struct pci_info *pci) {
    memset(pci, 0, sizeof *pci);
    bus_numbers(bus, &pci->domain, &pci->bus, &pci->device);
    pci->pci_device_id = device_id << 16 | 0x10de;
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.0",
             pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xff,
             pci->device & 0xff);
}

/* A MIG device has what its profile says: 1g.10gb. */
static unsigned long long memory_mib(Device device) {
    const struct sim_mig *mig = mig_of(device);
    const char *number = mig ? strstr(mig->profile, "g.") : NULL;
    return number ? strtoull(number + 2, NULL, 10) << 10 : gpu_of(device)->memory_mib;
}

int nvmlDeviceGetMemoryInfo(Device device, struct memory *memory) {
    int rc = check(device, memory);
    if (rc)
        return rc;
    memory->total = memory->free = memory_mib(device) << 20;
    memory->used = 0;
    return NVML_SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Device device, struct memory_v2 *memory) {
    int rc = check(device, memory);
    if (rc)
        return rc;
    memory->total = memory->free = memory_mib(device) << 20;
    memory->reserved = memory->used = 0;
    return NVML_SUCCESS;
}

int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    int rc = check(device, current);
    if (rc || !pending)
        return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
    const struct sim_gpu *gpu = gpu_of(device);
    if (!gpu->mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = gpu->mig_mode || gpu->mig[0].uuid[0] != '\0';
    return NVML_SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) {
    int rc = check(device, count);
    if (!rc)
        *count = gpu_of(device)->mig_capable && !mig_of(device) ? SIM_MAX_MIG : 0;
    return rc;
}

/* Counts those that can be used where this runs: a container with one has it as index 0. */
int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *mig) {
    int rc = check(device, mig);
    if (rc)
        return rc;
    struct sim_gpu *gpu = gpu_of(device);
    if (mig_of(device) || !gpu->mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= SIM_MAX_MIG)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < SIM_MAX_MIG; i++)
        if (is_usable(&gpu->mig[i]) && index-- == 0) {
            *mig = &gpu->mig[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device mig, Device *device) {
    int rc = check_mig(mig, device);
    if (!rc)
        *device = gpu_of(mig);
    return rc;
}

int nvmlDeviceIsMigDeviceHandle(Device device, unsigned *is_mig) {
    int rc = check(device, is_mig);
    if (!rc)
        *is_mig = mig_of(device) != NULL;
    return rc;
}

int nvmlDeviceGetGpuInstanceId(Device mig, unsigned *id) {
    int rc = check_mig(mig, id);
    if (!rc)
        *id = mig_of(mig)->gi;
    return rc;
}

int nvmlDeviceGetComputeInstanceId(Device mig, unsigned *id) {
    int rc = check_mig(mig, id);
    if (!rc)
        *id = mig_of(mig)->ci;
    return rc;
}

int nvmlDeviceGetAttributes_v2(Device mig, struct attributes *attributes) {
    int rc = check_mig(mig, attributes);
    if (rc)
        return rc;
    unsigned gi = 0, ci = 0;
    const char *profile = mig_of(mig)->profile;
    if (sscanf(profile, "%uc.%ug.", &ci, &gi) != 2) {
        sscanf(profile, "%ug.", &gi);
        ci = gi;
    }
    memset(attributes, 0, sizeof *attributes);
    attributes->gpu_instance_slices = gi;
    attributes->compute_instance_slices = ci;
    attributes->memory_mib = memory_mib(mig);
    return NVML_SUCCESS;
}

int nvmlDeviceGetBrand(Device device, unsigned *brand) {
    int rc = check(device, brand);
    if (rc)
        return rc;
    const char *model = gpu_of(device)->model;
    if (strstr(model, "GeForce"))
        *brand = BRAND_GEFORCE;
    else if (strstr(model, "RTX"))
        *brand = BRAND_NVIDIA_RTX;
    else
        *brand = strstr(model, "Tesla") ? BRAND_TESLA : BRAND_NVIDIA;
    return NVML_SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    int rc = check(device, major);
    if (rc || !minor)
        return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
    *major = *minor = 0;
    sscanf(gpu_of(device)->compute, "%d.%d", major, minor);
    return NVML_SUCCESS;
}

int nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *celsius) {
    int rc = check(device, celsius);
    if (rc || sensor)
        return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
    *celsius = 35;
    return NVML_SUCCESS;
}
