/* The GPU table: a text trailer behind the ELF image, overlaid by the state file it names.
 *
 * nvhook/sim/machine.py describes the text; the trailer is
 *
 *     \nNVHOOK-SIM 1\n
 *     state-path=<absolute path>\n
 *     <key=value lines>
 *     NVHOOK-SIM-END <offset of the first line, 12 digits>\n
 */
#define _GNU_SOURCE
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define MAX_TEXT 131072
#define MAX_PATH 4096
#define MAGIC "\nNVHOOK-SIM 1\n"
#define END "NVHOOK-SIM-END "
#define END_LENGTH (sizeof(END) - 1 + 12 + 1)

static void copy_text(char *to, size_t size, const char *from) {
    size_t length = strlen(from);
    if (length >= size)
        length = size - 1;
    memcpy(to, from, length);
    to[length] = '\0';
}

static unsigned long long number(const char *text) {
    return strtoull(text, NULL, 0);
}

/* UUID GI CI GI-MINOR CI-MINOR PROFILE */
static void set_mig(struct sim_mig *mig, const char *value) {
    memset(mig, 0, sizeof *mig);
    if (sscanf(value, "%63s %u %u %u %u %23s", mig->uuid, &mig->gi, &mig->ci, &mig->gi_minor,
               &mig->ci_minor, mig->profile) != 6)
        mig->uuid[0] = '\0';
}

/* NUMBER [GI CI]: one more. */
static void add_xid(struct sim_gpu *gpu, const char *value) {
    struct sim_xid xid = {0, SIM_WHOLE_GPU, SIM_WHOLE_GPU};
    if (gpu->xid_count < SIM_MAX_XIDS && sscanf(value, "%u %u %u", &xid.number, &xid.gi, &xid.ci))
        gpu->xids[gpu->xid_count++] = xid;
}

static enum sim_status status_of(const char *value) {
    if (!strcmp(value, "lost"))
        return SIM_LOST;
    return strcmp(value, "failed") ? SIM_OK : SIM_FAILED;
}

static enum sim_nvml nvml_of(const char *value) {
    if (!strcmp(value, "storm"))
        return SIM_STORM;
    return strcmp(value, "hang") ? SIM_ANSWERING : SIM_HANGING;
}

static enum sim_rows rows_of(const char *value) {
    if (!strcmp(value, "pending"))
        return SIM_ROWS_PENDING;
    return strcmp(value, "failed") ? SIM_ROWS_SOUND : SIM_ROWS_FAILED;
}

static void set_gpu(struct sim_gpu *gpu, const char *key, const char *value) {
    if (!strcmp(key, "uuid"))
        copy_text(gpu->uuid, sizeof gpu->uuid, value);
    else if (!strcmp(key, "bus"))
        copy_text(gpu->bus, sizeof gpu->bus, value);
    else if (!strcmp(key, "model"))
        copy_text(gpu->model, sizeof gpu->model, value);
    else if (!strcmp(key, "compute"))
        copy_text(gpu->compute, sizeof gpu->compute, value);
    else if (!strcmp(key, "minor"))
        gpu->minor = (unsigned)number(value);
    else if (!strcmp(key, "device"))
        gpu->device_id = (unsigned)number(value);
    else if (!strcmp(key, "memory_mib"))
        gpu->memory_mib = number(value);
    else if (!strcmp(key, "mig_capable"))
        gpu->mig_capable = number(value) != 0;
    else if (!strcmp(key, "mig_mode"))
        gpu->mig_mode = number(value) != 0;
    else if (!strcmp(key, "status"))
        gpu->status = status_of(value);
    else if (!strcmp(key, "recovery"))
        gpu->recovery = atoi(value);
    else if (!strcmp(key, "rows"))
        gpu->rows = rows_of(value);
    else if (!strcmp(key, "place"))
        copy_text(gpu->place, sizeof gpu->place, value);
    else if (!strcmp(key, "nvlinks"))
        copy_text(gpu->nvlinks, sizeof gpu->nvlinks, value);
    else if (!strcmp(key, "xid"))
        add_xid(gpu, value);
    else if (!strncmp(key, "mig", 3) && key[3] >= '0' && key[3] < '0' + SIM_MAX_MIG && !key[4])
        set_mig(&gpu->mig[key[3] - '0'], value);
}

static void set_key(struct sim_machine *machine, const char *key, const char *value) {
    if (!strncmp(key, "gpu", 3) && key[3] >= '0' && key[3] <= '9') {
        char *rest;
        unsigned long index = strtoul(key + 3, &rest, 10);
        if (index < SIM_MAX_GPUS && *rest == '.')
            set_gpu(&machine->gpus[index], rest + 1, value);
    } else if (!strcmp(key, "state-path")) {
        copy_text(machine->state_path, sizeof machine->state_path, value);
    } else if (!strcmp(key, "gpus")) {
        unsigned long long count = number(value);
        machine->count = count > SIM_MAX_GPUS ? SIM_MAX_GPUS : (unsigned)count;
    } else if (!strcmp(key, "driver_version")) {
        copy_text(machine->driver_version, sizeof machine->driver_version, value);
    } else if (!strcmp(key, "cuda_version")) {
        machine->cuda_version = (unsigned)number(value);
    } else if (!strcmp(key, "uvm_major")) {
        machine->uvm_major = (unsigned)number(value);
    } else if (!strcmp(key, "caps_major")) {
        machine->caps_major = (unsigned)number(value);
    } else if (!strcmp(key, "nvml")) {
        machine->nvml = nvml_of(value);
    }
}

/* Read key=value lines; a # starts a comment line. */
static void parse(char *text, struct sim_machine *machine) {
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        char *equals = strchr(line, '=');
        if (*line == '#' || !equals)
            continue;
        *equals = '\0';
        set_key(machine, line, equals + 1);
    }
}

static int read_at(int fd, char *buffer, size_t length, off_t offset) {
    for (size_t done = 0; done < length;) {
        ssize_t got = pread(fd, buffer + done, length - done, offset + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            return -EBADMSG;
        done += (size_t)got;
    }
    buffer[length] = '\0';
    return 0;
}

static int read_trailer(int fd, char *text) {
    struct stat st;
    char end[END_LENGTH + 1];
    if (fstat(fd, &st))
        return -errno;
    if (st.st_size < (off_t)END_LENGTH)
        return -EBADMSG;
    int rc = read_at(fd, end, END_LENGTH, st.st_size - (off_t)END_LENGTH);
    if (rc)
        return rc;
    if (strncmp(end, END, sizeof(END) - 1))
        return -EBADMSG;
    off_t start = (off_t)strtoull(end + sizeof(END) - 1, NULL, 10);
    off_t length = st.st_size - (off_t)END_LENGTH - start;
    if (start < 0 || length < (off_t)sizeof(MAGIC) - 1 || length >= MAX_TEXT)
        return -EBADMSG;
    rc = read_at(fd, text, (size_t)length, start);
    if (!rc && strncmp(text, MAGIC, sizeof(MAGIC) - 1))
        rc = -EBADMSG;
    return rc;
}

static void overlay(struct sim_machine *machine, char *text) {
    struct stat st;
    int fd = open(machine->state_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size < MAX_TEXT &&
        !read_at(fd, text, (size_t)st.st_size, 0))
        parse(text, machine);
    close(fd);
}

/* Choose the directory of the nodes. */
static void find_dev(struct sim_machine *machine) {
    struct stat st;
    const char *state_path = machine->state_path;
    const char *slash = strrchr(state_path, '/');
    char path[MAX_PATH + 32];
    strcpy(machine->dev, "/dev");
    if (!slash || !lstat("/dev/nvidiactl", &st))
        return;
    snprintf(path, sizeof path, "%.*s/dev/nvidiactl", (int)(slash - state_path), state_path);
    if (!lstat(path, &st))
        snprintf(machine->dev, sizeof machine->dev, "%.*s/dev", (int)(slash - state_path),
                 state_path);
}

int sim_load(const char *path, struct sim_machine *machine) {
    int rc = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    char *text = malloc(MAX_TEXT + 1);
    if (!text)
        rc = -ENOMEM;
    if (!rc)
        rc = read_trailer(fd, text);
    if (!rc) {
        memset(machine, 0, sizeof *machine);
        for (unsigned i = 0; i < SIM_MAX_GPUS; i++)
            machine->gpus[i].recovery = -1;
        parse(text, machine);
        if (machine->state_path[0] == '/')
            overlay(machine, text);
        find_dev(machine);
    }
    free(text);
    close(fd);
    return rc;
}

enum sim_access sim_probe(const char *path, unsigned major, unsigned minor) {
    struct stat st;
    if (stat(path, &st)) {
        if (errno == ENOENT || errno == ENOTDIR)
            return SIM_MISSING;
        return errno == EACCES ? SIM_FORBIDDEN : SIM_BROKEN;
    }
    /* Checked before the open: a wrong node could be a device whose open has an effect. */
    if (!S_ISCHR(st.st_mode) || st.st_rdev != makedev(major, minor))
        return SIM_WRONG;
    /* Capabilities are nodes of mode 0444: they are opened, never written. */
    int flags = strstr(path, "/nvidia-caps/") ? O_RDONLY : O_RDWR;
    int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        close(fd);
        return SIM_PERMITTED;
    }
    switch (errno) {
    case ENXIO:
        return SIM_PERMITTED;
    case EPERM:
        return SIM_DENIED;
    case EACCES:
        return SIM_FORBIDDEN;
    case ENOENT:
        return SIM_MISSING;
    default:
        return SIM_BROKEN;
    }
}

static enum sim_access probe(const struct sim_machine *machine, unsigned major, unsigned minor,
                             const char *name) {
    char path[MAX_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", machine->dev, name);
    return sim_probe(path, major, minor);
}

enum sim_access sim_probe_ctl(const struct sim_machine *machine) {
    return probe(machine, SIM_NVIDIA_MAJOR, SIM_CTL_MINOR, "nvidiactl");
}

enum sim_access sim_probe_gpu(const struct sim_machine *machine, const struct sim_gpu *gpu) {
    char name[32];
    snprintf(name, sizeof name, "nvidia%u", gpu->minor);
    return probe(machine, SIM_NVIDIA_MAJOR, gpu->minor, name);
}

static enum sim_access probe_capability(const struct sim_machine *machine, unsigned minor) {
    char name[48];
    snprintf(name, sizeof name, "nvidia-caps/nvidia-cap%u", minor);
    return probe(machine, machine->caps_major, minor, name);
}

enum sim_access sim_probe_mig(const struct sim_machine *machine, const struct sim_mig *mig) {
    enum sim_access access = probe_capability(machine, mig->gi_minor);
    return access != SIM_PERMITTED ? access : probe_capability(machine, mig->ci_minor);
}

enum sim_access sim_probe_uvm(const struct sim_machine *machine) {
    return probe(machine, machine->uvm_major, 0, "nvidia-uvm");
}

const char *sim_access_text(enum sim_access access) {
    switch (access) {
    case SIM_PERMITTED:
        return "permitted";
    case SIM_MISSING:
        return "node missing";
    case SIM_DENIED:
        return "denied by the device cgroup";
    case SIM_FORBIDDEN:
        return "denied by the file mode or a nodev mount";
    case SIM_WRONG:
        return "wrong node type or number";
    case SIM_BROKEN:
        break;
    }
    return "can't be opened";
}
