/* The C functions Python may call. Each returns a value >= 0 or -errno. */
#ifndef NVHOOK_SYSCALLS_H
#define NVHOOK_SYSCALLS_H

#include <stddef.h>
#include <stdint.h>

/* cdef begin */
/* Paths and descriptors. */
int nvh_openat2(int dirfd, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve);
int nvh_setfsids(uint32_t uid, uint32_t gid);
int nvh_setns(int fd, int nstype);
int nvh_unshare(int namespaces);
int nvh_pidfd_open(int pid);
int64_t nvh_mount_id(int fd);
int64_t nvh_filesystem_magic(int fd);
int nvh_inotify(const char *path, uint32_t mask);

/* Mounts. */
int nvh_clone_mount(const char *path, uint64_t set, uint64_t clear, uint64_t propagation);
int nvh_clone_tree(int dirfd, uint64_t set, uint64_t below);
int nvh_clone_directory(int dirfd, uint64_t clear, uint64_t propagation);
int nvh_mount_setattr(int fd, unsigned int flags, uint64_t set, uint64_t clear, uint64_t propagation);
int nvh_move_mount(int mount_fd, int target_fd);
int nvh_tmpfs(const char *mode, const char *size);
int nvh_umount_at(int dirfd, const char *name);

/* Device programs of cgroup v2 (BPF_PROG_TYPE_CGROUP_DEVICE). */
int nvh_bpf_query(int cgroup_fd, uint32_t query_flags, uint32_t *ids, uint32_t count, uint32_t *attach_flags);
int nvh_bpf_prog_fd(uint32_t id);
int nvh_bpf_prog_id(int prog_fd);
int nvh_bpf_prog_xlated(int prog_fd, void *buffer, uint32_t size);
int nvh_bpf_prog_name(int prog_fd, char *name16);
int nvh_bpf_prog_load(const void *insns, uint32_t count, const char *name, char *log, uint32_t log_size);
int nvh_bpf_prog_attach(int cgroup_fd, int prog_fd, uint32_t flags, int replace_fd);
int nvh_bpf_link_next(uint32_t id, uint32_t *next);
int nvh_bpf_link_fd(uint32_t id);
int nvh_bpf_link_info(int link_fd, uint32_t *prog_id, uint64_t *cgroup_id);
int nvh_bpf_link_update(int link_fd, int new_prog_fd, int old_prog_fd);

/* What a container asks for (request.c): 1 if a config.json can be told by its digest, else 0. */
int nvh_request_digest(const char *config, size_t size, uint8_t digest[32]);
/* The name of the recordings of a request: words say what was called, NUL-terminated. */
int nvh_recording_key(const void *words, size_t size, const uint8_t request[32], char key[65]);

/* The device list of a systemd unit: put devices ("c 195:1 rw" in lines) on it or take them off; how many. */
int nvh_systemd_devices(const char *path, const char *unit, const char *devices, int forget, int seconds, char why[256]);

/* What confines a helper program (ldconfig): seccomp allow-list. */
int nvh_seccomp_ldconfig(void);
/* cdef end */

#endif
