/* The simulated machine as its programs see it: the GPU table and what opening a node says. */
#ifndef NVHOOK_SIM_MACHINE_H
#define NVHOOK_SIM_MACHINE_H

#define SIM_MAX_GPUS 64
#define SIM_MAX_MIG 7
#define SIM_MAX_XIDS 32
#define SIM_MAX_NVLINKS 18
#define SIM_NVIDIA_MAJOR 195
#define SIM_CTL_MINOR 255

struct sim_mig {
    unsigned gi, ci; /* the ids of the GPU instance, and of the compute instance in it */
    unsigned gi_minor, ci_minor;
    char uuid[64]; /* empty: there is no such device */
    char profile[24];
};

/* An error that the driver reports; gi and ci are SIM_WHOLE_GPU where it is no MIG instance's. */
struct sim_xid {
    unsigned number, gi, ci;
};
#define SIM_WHOLE_GPU 0xFFFFFFFFu

enum sim_status { SIM_OK, SIM_LOST, SIM_FAILED };
/* What every call into NVML does: SIM_HANGING ones never return. */
enum sim_nvml { SIM_ANSWERING, SIM_STORM, SIM_HANGING };

/* Rows of a GPU's memory: sound, remapped by its next reset, or beyond that. */
enum sim_rows { SIM_ROWS_SOUND, SIM_ROWS_PENDING, SIM_ROWS_FAILED };

struct sim_gpu {
    unsigned minor;
    unsigned device_id;
    unsigned long long memory_mib;
    int mig_capable;
    int mig_mode; /* in MIG mode also without MIG devices */
    enum sim_status status;
    int recovery; /* NVML's recovery action; negative: the driver does not know of any */
    enum sim_rows rows;
    char uuid[48];
    char bus[16];
    char model[96];
    char compute[8];
    char place[32];    /* on the PCI tree, from the CPU down: 0/1/0 */
    char nvlinks[128]; /* the index of the GPU at the other end of each link, or s: a switch */
    struct sim_mig mig[SIM_MAX_MIG];
    unsigned xid_count;
    struct sim_xid xids[SIM_MAX_XIDS];
};

struct sim_machine {
    unsigned count;
    unsigned cuda_version; /* 12040: CUDA 12.4 */
    unsigned uvm_major, caps_major;
    enum sim_nvml nvml;
    char driver_version[24];
    char state_path[4096]; /* empty: none */
    char dev[4096]; /* where the nodes are: /dev, or see sim_load */
    struct sim_gpu gpus[SIM_MAX_GPUS];
};

enum sim_access {
    SIM_PERMITTED,
    SIM_MISSING,   /* no node */
    SIM_DENIED,    /* EPERM: the device cgroup says no */
    SIM_FORBIDDEN, /* EACCES: file mode, or a nodev mount */
    SIM_WRONG,     /* something stands there, but not this device */
    SIM_BROKEN,    /* any other errno */
};

/* Fill in the table from the trailer of the file at path, then from the state file it names where
 * that can be read. On the simulated driver's own host /dev has no such nodes; there those beside
 * the state file count. Returns 0, or -errno (-EBADMSG: no trailer, or a damaged one). */
int sim_load(const char *path, struct sim_machine *machine);

/* Say whether a device node can be used. No driver stands behind the simulated majors: an open that
 * passes the device cgroup ends with ENXIO. */
enum sim_access sim_probe(const char *path, unsigned major, unsigned minor);
enum sim_access sim_probe_ctl(const struct sim_machine *machine);
enum sim_access sim_probe_gpu(const struct sim_machine *machine, const struct sim_gpu *gpu);
/* Both of its capabilities: the worse of the two. */
enum sim_access sim_probe_mig(const struct sim_machine *machine, const struct sim_mig *mig);
enum sim_access sim_probe_uvm(const struct sim_machine *machine);

const char *sim_access_text(enum sim_access access);

#endif
