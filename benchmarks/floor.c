/*
 * The floor: a static hook that knows beforehand what nvhook has to find out, and does the same
 * mounts, nodes and device rule. What it adds to a container's start no hook can avoid.
 *
 *   floor LIST ROOTFS < state.json
 *   LIST: lines "m HOST CONTAINER" (bind), "d HOST CONTAINER MAJOR MINOR", "l TARGET LINK",
 *         "c HOST CONTAINER" (copy), "b PROGRAM -" (cgroup v2: the file's instructions take the
 *         place of the device program; without this line the nodes are allowed on cgroup v1)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX 256

struct line {
	char kind, host[512], container[512];
	int major, minor, tree;
};

static struct line lines[MAX];
static int count;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static int rootfs_open(int root, const char *path, int flags)
{
	struct open_how how = { .flags = (unsigned)flags | O_CLOEXEC,
				.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };
	return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

static int parent(int root, const char *path, const char **name)
{
	char copy[512];
	snprintf(copy, sizeof copy, "%s", path);
	char *slash = strrchr(copy, '/');
	*slash = '\0';
	*name = path + (slash - copy) + 1;
	if (!*copy)
		return dup(root);
	int fd = rootfs_open(root, copy, O_PATH | O_DIRECTORY);
	if (fd >= 0)
		return fd;
	const char *last;
	int above = parent(root, copy, &last);
	mkdirat(above, last, 0755);
	fd = openat(above, last, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	close(above);
	return fd;
}

static void copy_file(int directory, const char *host, const char *name)
{
	static char data[4 << 20];
	int from = open(host, O_RDONLY);
	int to = openat(directory, ".floor", O_WRONLY | O_CREAT | O_EXCL, 0644);
	ssize_t size = read(from, data, sizeof data);
	if (size < 0 || to < 0 || write(to, data, (size_t)size) != size)
		die("copy");
	close(from);
	close(to);
	if (renameat(directory, ".floor", directory, name) < 0)
		die("rename");
}

static void apply(int root, struct line *l)
{
	const char *name;
	int directory = parent(root, l->container, &name);
	if (directory < 0)
		die(l->container);
	if (l->kind == 'l') {
		if (symlinkat(l->host, directory, name) < 0)
			die(l->container);
	} else if (l->kind == 'c') {
		copy_file(directory, l->host, name);
	} else {
		struct stat st;
		fstat(l->tree, &st);
		int target = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
		if (target < 0) {
			if (S_ISDIR(st.st_mode))
				mkdirat(directory, name, 0755);
			else
				close(openat(directory, name, O_WRONLY | O_CREAT | O_EXCL, 0644));
			target = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
		}
		if (syscall(SYS_move_mount, l->tree, "", target, "",
			    MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
			die(l->container);
		close(target);
	}
	close(directory);
}

static void read_list(const char *path)
{
	FILE *file = fopen(path, "r");
	if (!file)
		die(path);
	char text[1200];
	while (count < MAX && fgets(text, sizeof text, file)) {
		struct line *l = &lines[count];
		if (sscanf(text, "%c %511s %511s %d %d", &l->kind, l->host, l->container, &l->major, &l->minor) >= 3)
			count++;
	}
	fclose(file);
}

/* Write the path of a process's directory in one hierarchy. */
static int cgroup_of(int pid, const char *line, const char *mount, char *path, size_t size)
{
	char name[64], text[4096] = "", *at, *end;
	snprintf(name, sizeof name, "/proc/%d/cgroup", pid);
	int fd = open(name, O_RDONLY);
	ssize_t got = read(fd, text, sizeof text - 1);
	close(fd);
	if (got <= 0 || !(at = strstr(text, line)) || !(end = strchr(at, '\n')))
		return -1;
	at += strlen(line);
	snprintf(path, size, "%s%.*s", mount, (int)(end - at), at);
	return 0;
}

static void allow_v1(int pid)
{
	char path[4200], text[64];
	if (cgroup_of(pid, ":devices:", "/sys/fs/cgroup/devices", path, sizeof path) < 0)
		return;
	strncat(path, "/devices.allow", sizeof path - strlen(path) - 1);
	int fd = open(path, O_WRONLY);
	for (int i = 0; i < count; i++)
		if (lines[i].kind == 'd') {
			int n = snprintf(text, sizeof text, "c %d:%d rw", lines[i].major, lines[i].minor);
			if (write(fd, text, (size_t)n) != n)
				die("devices.allow");
		}
	close(fd);
}

static int bpf(int command, union bpf_attr *request)
{
	return (int)syscall(SYS_bpf, command, request, sizeof *request);
}

/* Swap the one device program of the process's directory for one that was made beforehand. */
static void allow_v2(int pid, const char *program)
{
	static uint64_t code[8192];
	char path[4200];
	int from = open(program, O_RDONLY);
	ssize_t size = read(from, code, sizeof code);
	close(from);
	if (size <= 0 || cgroup_of(pid, "0::", "/sys/fs/cgroup", path, sizeof path) < 0)
		die(program);
	union bpf_attr load = { .prog_type = BPF_PROG_TYPE_CGROUP_DEVICE, .insns = (uintptr_t)code,
				.insn_cnt = (uint32_t)(size / 8), .license = (uintptr_t) "GPL" };
	int cgroup = open(path, O_RDONLY | O_DIRECTORY), new = bpf(BPF_PROG_LOAD, &load);
	uint32_t id = 0;
	union bpf_attr query = { .query = { .target_fd = (uint32_t)cgroup, .attach_type = BPF_CGROUP_DEVICE,
					    .prog_ids = (uintptr_t)&id, .prog_cnt = 1 } };
	if (new < 0 || bpf(BPF_PROG_QUERY, &query) < 0)
		die("the device program");
	union bpf_attr open_id = { .prog_id = id };
	int old = bpf(BPF_PROG_GET_FD_BY_ID, &open_id);
	union bpf_attr attach = { .target_fd = (uint32_t)cgroup, .attach_bpf_fd = (uint32_t)new,
				  .attach_type = BPF_CGROUP_DEVICE, .replace_bpf_fd = (uint32_t)old,
				  .attach_flags = BPF_F_ALLOW_MULTI | BPF_F_REPLACE };
	if (old < 0 || bpf(BPF_PROG_ATTACH, &attach) < 0)
		die("replace the device program");
}

int main(int argc, char **argv)
{
	static char state[1 << 16];
	if (argc != 3 || read(0, state, sizeof state - 1) <= 0)
		return 2;
	char *at = strstr(state, "\"pid\":");
	int pid = at ? atoi(at + 6) : 0;
	read_list(argv[1]);
	for (int i = 0; i < count; i++) {
		struct line *l = &lines[i];
		if (l->kind != 'm' && l->kind != 'd')
			continue;
		l->tree = (int)syscall(SYS_open_tree, AT_FDCWD, l->host, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
		struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, .propagation = 1 << 18 };
		if (l->kind == 'm')
			attr.attr_set |= MOUNT_ATTR_NODEV;
		if (l->tree < 0 || syscall(SYS_mount_setattr, l->tree, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
			die(l->host);
	}
	const char *program = NULL;
	for (int i = 0; i < count; i++)
		if (lines[i].kind == 'b')
			program = lines[i].host;
	if (program)
		allow_v2(pid, program);
	else
		allow_v1(pid);
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/mnt", pid);
	int ns = open(path, O_RDONLY);
	if (unshare(CLONE_FS) < 0 || setns(ns, CLONE_NEWNS) < 0)
		die("setns");
	int root = open(argv[2], O_PATH | O_DIRECTORY);
	if (root < 0)
		die(argv[2]);
	for (int i = 0; i < count; i++)
		if (lines[i].kind != 'b')
			apply(root, &lines[i]);
	return 0;
}
