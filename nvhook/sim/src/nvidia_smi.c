/* nvidia-smi of the simulated driver: static, so that it runs in any container.
 *
 * Lists the GPUs and MIG devices that can really be used where it runs, like nvidia-smi -L, and says
 * of every other one of the simulated machine why not: on stderr, or on stdout with --all, where the
 * permitted ones get a line too.
 *
 * Exit status: 0 listed (or no device), 2 usage, 9 no driver to talk to, 12 libnvidia-ml.so.1 not
 * found, 15 a listed GPU is lost, 1 the program's own table is damaged.
 */
#define _GNU_SOURCE
#include "loader.h"
#include "machine.h"

#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

#define LIBRARY "libnvidia-ml.so.1"

static int load(struct sim_machine *machine) {
    int rc = sim_load("/proc/self/exe", machine);
    /* A bare chroot has no /proc: the kernel also hands over the path that was executed. */
    const char *executed = (const char *)getauxval(AT_EXECFN);
    if (rc && executed)
        rc = sim_load(executed, machine);
    return rc;
}

static void list_mig(const struct sim_machine *machine, const struct sim_gpu *gpu) {
    unsigned shown = 0;
    for (unsigned i = 0; i < SIM_MAX_MIG; i++) {
        const struct sim_mig *mig = &gpu->mig[i];
        if (mig->uuid[0] && sim_probe_mig(machine, mig) == SIM_PERMITTED)
            printf("  MIG %-11s Device %2u: (UUID: %s)\n", mig->profile, shown++, mig->uuid);
    }
}

static int list(const struct sim_machine *machine, int all) {
    unsigned shown = 0, lost = 0;
    for (unsigned i = 0; i < machine->count; i++) {
        const struct sim_gpu *gpu = &machine->gpus[i];
        if (sim_probe_gpu(machine, gpu) != SIM_PERMITTED)
            continue;
        if (gpu->status == SIM_LOST) {
            printf("GPU %u: %s is lost (UUID: %s)\n", shown, gpu->bus, gpu->uuid);
            lost++;
        } else {
            printf("GPU %u: %s (UUID: %s)\n", shown, gpu->model, gpu->uuid);
        }
        shown++;
        if (gpu->status != SIM_LOST)
            list_mig(machine, gpu);
    }
    if (!shown)
        puts("No devices found.");
    for (unsigned i = 0; i < machine->count; i++) {
        const struct sim_gpu *gpu = &machine->gpus[i];
        enum sim_access access = sim_probe_gpu(machine, gpu);
        if (all || access != SIM_PERMITTED)
            fprintf(all ? stdout : stderr, "/dev/nvidia%u: %s (%s)\n", gpu->minor,
                    sim_access_text(access), gpu->uuid);
        for (unsigned j = 0; j < SIM_MAX_MIG; j++) {
            const struct sim_mig *mig = &gpu->mig[j];
            access = sim_probe_mig(machine, mig);
            if (mig->uuid[0] && (all || access != SIM_PERMITTED))
                fprintf(all ? stdout : stderr, "nvidia-cap%u, nvidia-cap%u: %s (%s)\n",
                        mig->gi_minor, mig->ci_minor, sim_access_text(access), mig->uuid);
        }
    }
    return lost ? 15 : 0;
}

static int usage(FILE *to) {
    fputs("usage: nvidia-smi [-L|--list-gpus] [-v|--all] [--loader]\n", to);
    return to == stdout ? 0 : 2;
}

int main(int argc, char **argv) {
    static struct sim_machine machine;
    char path[4096];
    const char *source;
    int all = 0, loader = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--all") || !strcmp(argv[i], "-v"))
            all = 1;
        else if (!strcmp(argv[i], "--loader"))
            loader = 1;
        else if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help"))
            return usage(stdout);
        else if (strcmp(argv[i], "-L") && strcmp(argv[i], "--list-gpus"))
            return usage(stderr);
    }
    if (load(&machine)) {
        fputs("nvidia-smi: this copy has no table of simulated GPUs behind it\n", stderr);
        return 1;
    }
    enum sim_access ctl = sim_probe_ctl(&machine);
    if (ctl != SIM_PERMITTED) {
        printf("nvidia-smi failed: the NVIDIA driver does not answer (/dev/nvidiactl: %s)\n",
               sim_access_text(ctl));
        return 9;
    }
    if (!loader_find(LIBRARY, path, sizeof path, &source)) {
        printf("nvidia-smi could not find " LIBRARY
               ": neither the loader cache nor the default directories have it\n");
        return 12;
    }
    if (loader)
        printf(LIBRARY " => %s (%s)\n", path, source);
    return list(&machine, all);
}
