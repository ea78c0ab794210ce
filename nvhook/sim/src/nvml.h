/* What the files of the simulated libnvidia-ml.so.1 share. Names and numbers are NVML's. */
#ifndef NVHOOK_SIM_NVML_H
#define NVHOOK_SIM_NVML_H

#include "machine.h"

#define EXPORT __attribute__((visibility("default")))

enum nvml_return {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_UNKNOWN = 999,
};

/* A struct sim_gpu or one of its struct sim_mig: told apart by where it stands. */
typedef void *Device;

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

/* As nvmlInit found it. */
extern struct sim_machine machine;

/* Read the machine as it is now. Returns what NVML as a whole answers, or does not return. */
int load(struct sim_machine *into);
/* Whether a call for a device may go on: the arguments are sound and the GPU is still there. */
int check(Device device, const void *out);
int error_of(const struct sim_gpu *gpu);

struct sim_gpu *gpu_of(Device device);
struct sim_mig *mig_of(Device device);
int bus_numbers(const char *text, unsigned *domain, unsigned *bus, unsigned *device);
void fill_pci(const char *bus, unsigned device_id, struct pci_info *pci);

#endif
