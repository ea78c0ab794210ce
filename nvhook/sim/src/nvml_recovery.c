/* NVML's knowledge of what a broken GPU needs: a recovery action, and remapped rows of memory. */
#define _GNU_SOURCE
#include "nvml.h"

enum { FIELD_RECOVERY_ACTION = 230, VALUE_UNSIGNED_INT = 1 };

struct field_value {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned type, result;
    union {
        unsigned number;
        unsigned long long widest;
    } value;
};

EXPORT int nvmlDeviceGetFieldValues(Device device, int count, struct field_value *values);
EXPORT int nvmlDeviceGetRemappedRows(Device device, unsigned *correctable, unsigned *uncorrectable,
                                     unsigned *pending, unsigned *failed);

int nvmlDeviceGetFieldValues(Device device, int count, struct field_value *values) {
    int rc = check(device, values);
    for (int i = 0; !rc && i < count; i++) {
        int known = values[i].field == FIELD_RECOVERY_ACTION && gpu_of(device)->recovery >= 0;
        values[i].result = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[i].type = VALUE_UNSIGNED_INT;
        values[i].value.widest = 0;
        if (known)
            values[i].value.number = (unsigned)gpu_of(device)->recovery;
    }
    return rc;
}

int nvmlDeviceGetRemappedRows(Device device, unsigned *correctable, unsigned *uncorrectable,
                              unsigned *pending, unsigned *failed) {
    int rc = check(device, correctable);
    if (rc || !uncorrectable || !pending || !failed)
        return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
    *correctable = 0;
    *pending = gpu_of(device)->rows == SIM_ROWS_PENDING;
    *failed = gpu_of(device)->rows == SIM_ROWS_FAILED;
    *uncorrectable = *pending || *failed;
    return NVML_SUCCESS;
}
