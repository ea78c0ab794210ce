/* NVML's topology, and compute modes: what the device plugin asks beside a GPU's own facts. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where two GPUs' ways to the CPU meet. */
enum { INTERNAL = 0, SINGLE = 10, MULTIPLE = 20, HOSTBRIDGE = 30, NODE = 40, SYSTEM = 50 };

#define SWITCH_BUS "0000:f0:00.0"
#define SWITCH_DEVICE 0x22a3
#define MAX_COMPUTE_MODE 3

EXPORT int nvmlDeviceGetTopologyCommonAncestor(Device one, Device other, unsigned *level);
EXPORT int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active);
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, struct pci_info *pci);
EXPORT int nvmlDeviceGetComputeMode(Device device, unsigned *mode);
EXPORT int nvmlDeviceSetComputeMode(Device device, unsigned mode);

/* Places are cpu/host bridge/upper switch/lower switch/board, as many as are needed. */
int nvmlDeviceGetTopologyCommonAncestor(Device one, Device other, unsigned *level) {
    static const unsigned levels[] = {SYSTEM, NODE, HOSTBRIDGE, MULTIPLE, SINGLE, INTERNAL};
    int rc = check(one, level);
    if (!rc)
        rc = check(other, level);
    if (rc)
        return rc;
    const char *a = gpu_of(one)->place, *b = gpu_of(other)->place;
    unsigned shared = !*a && !*b; /* nothing is said of either: one CPU */
    while (*a && *b && shared + 1 < sizeof levels / sizeof *levels) {
        size_t length = strcspn(a, "/");
        if (length != strcspn(b, "/") || strncmp(a, b, length))
            break;
        shared++;
        a += length + (a[length] == '/');
        b += length + (b[length] == '/');
    }
    *level = levels[shared];
    return NVML_SUCCESS;
}

/* Copy the word of a link; 0 where the GPU has no such link. */
static int link_word(const struct sim_gpu *gpu, unsigned link, char word[8]) {
    const char *at = gpu->nvlinks;
    for (int length; sscanf(at, "%7s%n", word, &length) == 1; at += length)
        if (link-- == 0)
            return 1;
    return 0;
}

int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active) {
    char word[8];
    int rc = check(device, active);
    if (rc || link >= SIM_MAX_NVLINKS)
        return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
    if (!link_word(gpu_of(device), link, word))
        return NVML_ERROR_NOT_SUPPORTED;
    *active = 1;
    return NVML_SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, struct pci_info *pci) {
    char word[8];
    int rc = check(device, pci);
    if (rc || link >= SIM_MAX_NVLINKS)
        return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
    if (!link_word(gpu_of(device), link, word))
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned index = (unsigned)atoi(word);
    if (*word == 's' || index >= machine.count)
        fill_pci(SWITCH_BUS, SWITCH_DEVICE, pci);
    else
        fill_pci(machine.gpus[index].bus, machine.gpus[index].device_id, pci);
    return NVML_SUCCESS;
}

/* A file beside the state stands for what the kernel module keeps. */
static FILE *mode_file(const struct sim_gpu *gpu, const char *how) {
    char path[sizeof machine.state_path + 40];
    const char *slash = strrchr(machine.state_path, '/');
    int length = slash ? (int)(slash - machine.state_path) : 0;
    snprintf(path, sizeof path, "%.*s/run/compute-mode.%u", length, machine.state_path, gpu->minor);
    return fopen(path, how);
}

int nvmlDeviceGetComputeMode(Device device, unsigned *mode) {
    int rc = check(device, mode);
    if (rc)
        return rc;
    *mode = 0;
    FILE *file = mode_file(gpu_of(device), "re");
    if (file && fscanf(file, "%u", mode) != 1)
        *mode = 0;
    if (file)
        fclose(file);
    return NVML_SUCCESS;
}

int nvmlDeviceSetComputeMode(Device device, unsigned mode) {
    int rc = check(device, device);
    if (rc || mode > MAX_COMPUTE_MODE)
        return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
    if (mig_of(device))
        return NVML_ERROR_NOT_SUPPORTED;
    if (geteuid())
        return NVML_ERROR_NO_PERMISSION;
    FILE *file = mode_file(gpu_of(device), "we");
    if (!file)
        return NVML_ERROR_UNKNOWN;
    fprintf(file, "%u\n", mode);
    return fclose(file) ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}
