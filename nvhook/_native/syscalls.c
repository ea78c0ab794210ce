/* System calls that Python or glibc before 2.36 do not offer. Each returns >= 0 or -errno. */
#define _GNU_SOURCE
#include "syscalls.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <linux/stat.h> /* glibc has struct statx from there, musl may not */
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef STATX_MNT_ID /* Linux 5.8 */
#define STATX_MNT_ID 0x1000U
#endif

static int result(long value) { return value < 0 ? -errno : (int)value; }

int nvh_openat2(int dirfd, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve)
{
	struct open_how how = { .flags = flags | O_CLOEXEC, .mode = mode, .resolve = resolve };
	return result(syscall(SYS_openat2, dirfd, path, &how, sizeof how));
}

/* The setfs*id calls report no errors: ask again to learn whether they took. */
int nvh_setfsids(uint32_t uid, uint32_t gid)
{
	setfsgid(gid);
	setfsuid(uid);
	if ((uint32_t)setfsuid(-1) != uid || (uint32_t)setfsgid(-1) != gid)
		return -EPERM;
	return 0;
}

/* CLONE_NEWNS needs a file system context of one's own; harmless when there is one already. */
int nvh_setns(int fd, int nstype)
{
	if (nstype & CLONE_NEWNS && unshare(CLONE_FS) < 0)
		return -errno;
	return result(setns(fd, nstype));
}

int nvh_unshare(int namespaces) { return result(unshare(namespaces)); }

int nvh_pidfd_open(int pid) { return result(syscall(SYS_pidfd_open, pid, 0)); }

/* A descriptor that tells of the changes of one path; it never makes a reader wait. */
int nvh_inotify(const char *path, uint32_t mask)
{
	int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (fd < 0)
		return -errno;
	if (inotify_add_watch(fd, path, mask) < 0) {
		int reason = errno;
		close(fd);
		return -reason;
	}
	return fd;
}

char *read_descriptor(int fd, size_t limit, size_t *size)
{
	struct stat st;
	size_t room = fstat(fd, &st) == 0 && st.st_size > 0 && (size_t)st.st_size < limit ? (size_t)st.st_size + 1 : 1 << 16;
	size_t have = 0;
	char *data = malloc(room + 1);
	while (data) {
		ssize_t n = read(fd, data + have, room - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			if (n < 0)
				break;
			data[have] = '\0';
			*size = have;
			return data;
		}
		have += (size_t)n;
		errno = EFBIG;
		if (have > limit)
			break;
		if (have == room) {
			char *more = realloc(data, (room *= 2) + 1);
			if (!more)
				break;
			data = more;
		}
	}
	free(data);
	return NULL;
}

char *read_file(int at, const char *path, size_t limit, size_t *size)
{
	int fd = openat(at, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	char *data = fd < 0 ? NULL : read_descriptor(fd, limit, size);
	if (fd >= 0)
		close(fd);
	return data;
}

int write_all(int fd, const void *data, size_t size)
{
	for (const char *at = data; size;) {
		ssize_t n = write(fd, at, size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += n;
		size -= (size_t)n;
	}
	return 0;
}

int64_t nvh_mount_id(int fd)
{
	struct statx st;
	memset(&st, 0, sizeof st);
	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_NO_AUTOMOUNT, STATX_MNT_ID, &st) < 0)
		return -errno;
	if (!(st.stx_mask & STATX_MNT_ID))
		return -ENOSYS;
	/* stx_mnt_id follows stx_dev_minor; older headers have no name for it. */
	uint64_t id;
	memcpy(&id, (const char *)&st + offsetof(struct statx, stx_dev_minor) + sizeof(st.stx_dev_minor), sizeof id);
	return (int64_t)id;
}

int64_t nvh_filesystem_magic(int fd)
{
	struct statfs st;
	return fstatfs(fd, &st) < 0 ? -errno : (int64_t)(uint32_t)st.f_type;
}

int nvh_mount_setattr(int fd, unsigned int flags, uint64_t set, uint64_t clear, uint64_t propagation)
{
	struct mount_attr attr = { .attr_set = set, .attr_clr = clear, .propagation = propagation };
	return result(syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH | flags, &attr, sizeof attr));
}

/* A detached copy of a mount, with other attributes. */
static int clone_of(int at, const char *path, unsigned int flags, uint64_t set, uint64_t clear, uint64_t propagation)
{
	int fd = (int)syscall(SYS_open_tree, at, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | flags);
	if (fd < 0)
		return -errno;
	int error = nvh_mount_setattr(fd, flags & AT_RECURSIVE, set, clear, propagation);
	if (error < 0)
		close(fd);
	return error < 0 ? error : fd;
}

/* A detached bind mount of one file or directory; a link at the end of the path is not followed. */
int nvh_clone_mount(const char *path, uint64_t set, uint64_t clear, uint64_t propagation)
{
	return clone_of(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, set, clear, propagation);
}

/*
 * A detached copy of a directory with everything mounted below it. Each mount gets the attributes set,
 * and all but the topmost those in below, too.
 */
int nvh_clone_tree(int dirfd, uint64_t set, uint64_t below)
{
	int fd = clone_of(dirfd, "", AT_EMPTY_PATH | AT_RECURSIVE, set | below, 0, 0);
	int error = fd < 0 ? fd : nvh_mount_setattr(fd, 0, 0, below, 0);
	if (fd >= 0 && error < 0)
		close(fd);
	return error < 0 ? error : fd;
}

/* A detached copy of one directory, without what is mounted below it and without some attributes. */
int nvh_clone_directory(int dirfd, uint64_t clear, uint64_t propagation)
{
	return clone_of(dirfd, "", AT_EMPTY_PATH, 0, clear, propagation);
}

int nvh_move_mount(int mount_fd, int target_fd)
{
	const unsigned int flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
	return result(syscall(SYS_move_mount, mount_fd, "", target_fd, "", flags));
}

int nvh_tmpfs(const char *mode, const char *size)
{
	int fs = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
	if (fs < 0)
		return -errno;
	int fd = -1;
	if (syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "mode", mode, 0) == 0 &&
	    syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "size", size, 0) == 0 &&
	    syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
		fd = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
				  MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	int error = errno;
	close(fs);
	return fd < 0 ? -error : fd;
}

/* Only a name relative to the working directory can be unmounted without following links. */
int nvh_umount_at(int dirfd, const char *name)
{
	int here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int error = fchdir(dirfd) < 0 ? -errno
				      : result(syscall(SYS_umount2, name, 2 /* MNT_DETACH */ | 8 /* UMOUNT_NOFOLLOW */));
	if (here >= 0) {
		int back = fchdir(here);
		(void)back; /* it has gone: then we are where nothing relative is looked for */
		close(here);
	}
	return error;
}

#if defined(__x86_64__)
#define NVH_AUDIT_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NVH_AUDIT_ARCH AUDIT_ARCH_AARCH64
#else
#error "no seccomp allow-list for this architecture"
#endif

/* What ldconfig needs to read directories and ELF files and to write one file. */
static const int ldconfig_calls[] = {
	SYS_read, SYS_write, SYS_close, SYS_fstat, SYS_lseek, SYS_mmap, SYS_mprotect, SYS_munmap,
	SYS_brk, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_pread64, SYS_pwrite64,
	SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_uname, SYS_fcntl, SYS_fsync,
	SYS_fdatasync, SYS_ftruncate, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_getdents64, SYS_openat,
	SYS_newfstatat, SYS_statx, SYS_readlinkat, SYS_faccessat, SYS_symlinkat, SYS_unlinkat,
	SYS_renameat, SYS_renameat2, SYS_linkat, SYS_mkdirat, SYS_fchmod, SYS_fchmodat, SYS_umask,
	SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getpid, SYS_gettid, SYS_prlimit64,
	SYS_set_tid_address, SYS_set_robust_list, SYS_futex, SYS_getrandom, SYS_rseq, SYS_prctl,
	SYS_mremap, SYS_madvise, SYS_fadvise64, SYS_clock_gettime, SYS_ioctl, SYS_kill, SYS_tgkill,
	SYS_statfs, SYS_fstatfs, SYS_utimensat, SYS_writev, SYS_readv,
#ifdef __x86_64__
	SYS_arch_prctl, SYS_open, SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_rename,
	SYS_unlink, SYS_symlink, SYS_chmod, SYS_mkdir, SYS_link, SYS_getrlimit,
#endif
};

#define CALLS (sizeof ldconfig_calls / sizeof *ldconfig_calls)

int nvh_seccomp_ldconfig(void)
{
	struct sock_filter code[CALLS + 6];
	size_t n = 0;
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
	code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NVH_AUDIT_ARCH, 1, 0);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < CALLS; i++)
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)ldconfig_calls[i],
							 (unsigned char)(CALLS - i), 0);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { .len = (unsigned short)n, .filter = code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	return result(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
}
