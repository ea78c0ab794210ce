/* Device programs of cgroup v2: the part of bpf(2) that reads, loads and swaps them.
 *
 * The structures hold only the fields used here, at the kernel's offsets: the build does not depend
 * on how new the installed linux/bpf.h is, and a kernel takes a shorter structure than its own.
 */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "syscalls.h"

enum {
  CMD_PROG_LOAD = 5,
  CMD_PROG_ATTACH = 8,
  CMD_PROG_GET_FD_BY_ID = 13,
  CMD_OBJ_GET_INFO_BY_FD = 15,
  CMD_PROG_QUERY = 16,
  CMD_LINK_UPDATE = 29,
  CMD_LINK_GET_FD_BY_ID = 30,
  CMD_LINK_GET_NEXT_ID = 31,
  TYPE_CGROUP_DEVICE = 15,  /* BPF_PROG_TYPE_CGROUP_DEVICE */
  ATTACH_CGROUP_DEVICE = 6, /* BPF_CGROUP_DEVICE */
  LINK_TYPE_CGROUP = 3,
  FLAG_LINK_REPLACE = 4, /* BPF_F_REPLACE */
  NAME_SIZE = 16,
};

struct id_request {
  uint32_t id, next_id, open_flags;
};

struct info_request {
  uint32_t fd, size;
  uint64_t info;
};

/* The head of struct bpf_prog_info. */
struct prog_info {
  uint32_t type, id;
  uint8_t tag[8];
  uint32_t jited_len, xlated_len;
  uint64_t jited, xlated, load_time;
  uint32_t uid, map_count;
  uint64_t maps;
  char name[NAME_SIZE];
};

/* struct bpf_link_info with its cgroup arm. */
struct link_info {
  uint32_t type, id, prog_id, unused;
  uint64_t cgroup_id;
  uint32_t attach_type, unused_too;
};

static int bpf(int command, void *request, size_t size)
{
  long result = syscall(__NR_bpf, command, request, size);
  return result < 0 ? -errno : (int)result;
}

static int fd_by_id(int command, uint32_t id)
{
  struct id_request request = {.id = id};
  return bpf(command, &request, sizeof request);
}

static int get_info(int fd, void *info, size_t size)
{
  struct info_request request = {.fd = fd, .size = size, .info = (uintptr_t)info};
  return bpf(CMD_OBJ_GET_INFO_BY_FD, &request, sizeof request);
}

/* Fill ids; return how many programs are attached (-ENOSPC: more than count). */
int nvh_bpf_query(int cgroup_fd, uint32_t query_flags, uint32_t *ids, uint32_t count, uint32_t *attach_flags)
{
  struct {
    uint32_t cgroup_fd, attach_type, query_flags, attach_flags;
    uint64_t ids;
    uint32_t count, unused;
  } request = {.cgroup_fd = cgroup_fd, .attach_type = ATTACH_CGROUP_DEVICE, .query_flags = query_flags,
               .ids = (uintptr_t)ids, .count = count};
  int result = bpf(CMD_PROG_QUERY, &request, sizeof request);
  if (result < 0)
    return result;
  *attach_flags = request.attach_flags;
  return request.count;
}

int nvh_bpf_prog_fd(uint32_t id)
{
  return fd_by_id(CMD_PROG_GET_FD_BY_ID, id);
}

/* Copy the program's instructions; return their length in bytes (size 0: only that).
 * -EACCES: the kernel hides them; -E2BIG: longer than size. */
int nvh_bpf_prog_xlated(int prog_fd, void *buffer, uint32_t size)
{
  struct prog_info info = {.xlated_len = size, .xlated = (uintptr_t)buffer};
  int result = get_info(prog_fd, &info, sizeof info);
  if (result < 0)
    return result;
  if (info.xlated_len == 0 || (size > 0 && info.xlated == 0))
    return -EACCES;
  if (size > 0 && info.xlated_len > size)
    return -E2BIG;
  return info.xlated_len;
}

int nvh_bpf_prog_name(int prog_fd, char *name16)
{
  struct prog_info info = {0};
  int result = get_info(prog_fd, &info, sizeof info);
  if (result < 0)
    return result;
  memcpy(name16, info.name, NAME_SIZE);
  name16[NAME_SIZE - 1] = 0;
  return 0;
}

int nvh_bpf_prog_id(int prog_fd)
{
  struct prog_info info = {0};
  int result = get_info(prog_fd, &info, sizeof info);
  return result < 0 ? result : (int)info.id;
}

/* Load a program (count in instructions); a log, if given, gets the verifier's reasons. */
int nvh_bpf_prog_load(const void *insns, uint32_t count, const char *name, char *log, uint32_t log_size)
{
  static const char license[] = "Apache-2.0";
  struct {
    uint32_t type, count;
    uint64_t insns, license;
    uint32_t log_level, log_size;
    uint64_t log;
    uint32_t kernel_version, flags;
    char name[NAME_SIZE];
  } request = {.type = TYPE_CGROUP_DEVICE, .count = count, .insns = (uintptr_t)insns,
               .license = (uintptr_t)license, .log_level = log ? 1 : 0, .log_size = log ? log_size : 0,
               .log = (uintptr_t)log};
  memcpy(request.name, name, strnlen(name, NAME_SIZE - 1));
  int result = bpf(CMD_PROG_LOAD, &request, sizeof request);
  if (result != -EPERM)
    return result;

  /* Before Linux 5.11 programs count against RLIMIT_MEMLOCK, by default too small for one. */
  struct rlimit before, raised = {RLIM_INFINITY, RLIM_INFINITY};
  if (getrlimit(RLIMIT_MEMLOCK, &before) < 0)
    return result;
  if (setrlimit(RLIMIT_MEMLOCK, &raised) < 0) {
    raised = (struct rlimit){before.rlim_max, before.rlim_max};
    if (setrlimit(RLIMIT_MEMLOCK, &raised) < 0)
      return result;
  }
  result = bpf(CMD_PROG_LOAD, &request, sizeof request);
  setrlimit(RLIMIT_MEMLOCK, &before);
  return result;
}

/* Attach; replace_fd < 0 replaces nothing. */
int nvh_bpf_prog_attach(int cgroup_fd, int prog_fd, uint32_t flags, int replace_fd)
{
  struct {
    uint32_t cgroup_fd, prog_fd, attach_type, flags, replace_fd;
  } request = {.cgroup_fd = cgroup_fd, .prog_fd = prog_fd, .attach_type = ATTACH_CGROUP_DEVICE,
               .flags = flags, .replace_fd = replace_fd < 0 ? 0 : replace_fd};
  return bpf(CMD_PROG_ATTACH, &request, sizeof request);
}

/* The first link after id (0 to begin); -ENOENT: no more. */
int nvh_bpf_link_next(uint32_t id, uint32_t *next)
{
  struct id_request request = {.id = id};
  int result = bpf(CMD_LINK_GET_NEXT_ID, &request, sizeof request);
  if (result == 0)
    *next = request.next_id;
  return result;
}

int nvh_bpf_link_fd(uint32_t id)
{
  return fd_by_id(CMD_LINK_GET_FD_BY_ID, id);
}

/* What a link holds: 1 if it attaches a device program to a cgroup (*cgroup_id is the directory's
 * inode number), else 0. */
int nvh_bpf_link_info(int link_fd, uint32_t *prog_id, uint64_t *cgroup_id)
{
  struct link_info info = {0};
  int result = get_info(link_fd, &info, sizeof info);
  if (result < 0)
    return result;
  *prog_id = info.prog_id;
  *cgroup_id = info.cgroup_id;
  return info.type == LINK_TYPE_CGROUP && info.attach_type == ATTACH_CGROUP_DEVICE;
}

/* Swap a link's program, if it still is the old one. */
int nvh_bpf_link_update(int link_fd, int new_prog_fd, int old_prog_fd)
{
  struct {
    uint32_t link_fd, new_fd, flags, old_fd;
  } request = {.link_fd = link_fd, .new_fd = new_prog_fd, .flags = FLAG_LINK_REPLACE, .old_fd = old_prog_fd};
  return bpf(CMD_LINK_UPDATE, &request, sizeof request);
}
