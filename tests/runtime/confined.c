/* Stands where the host's ldconfig is and writes down, into the container, what it may do. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char report[2048];

static void say(const char *what, const char *value)
{
	size_t used = strlen(report);
	snprintf(report + used, sizeof report - used, "%s = %s\n", what, value);
}

static void attempt(const char *what, long rc) { say(what, rc >= 0 ? "OK" : strerrorname_np(errno)); }

int main(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];
	struct stat st;
	char text[64];
	attempt("mount", mount("tmpfs", "/tmp", "tmpfs", 0, NULL));
	attempt("socket", socket(AF_INET, SOCK_STREAM, 0));
	attempt("unshare", unshare(0x10000000));
	attempt("ptrace", syscall(SYS_ptrace, 0, 0, 0, 0));
	attempt("chroot", chroot("/"));
	attempt("mknod", mknod("/tmp/node", S_IFCHR | 0600, 0x103));
	attempt("capget", syscall(SYS_capget, &header, data));
	attempt("host", stat("/etc/hostname-of-the-host", &st));
	snprintf(text, sizeof text, "%d", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
	say("no_new_privs", text);
	snprintf(text, sizeof text, "%d", prctl(PR_GET_SECCOMP, 0, 0, 0, 0));
	say("seccomp", text);
	int bounding = 0;
	for (int i = 0; i < 64; i++)
		bounding += prctl(PR_CAPBSET_READ, i, 0, 0, 0) == 1;
	snprintf(text, sizeof text, "%d", bounding);
	say("bounding", text);
	snprintf(text, sizeof text, "%u:%u", getuid(), getgid());
	say("ids", text);
	/* Owned by root, mode 0: only a capability opens it for anyone else. */
	attempt("locked", open("/locked", O_RDONLY));
	int fd = open("/etc/report", O_WRONLY | O_CREAT | O_TRUNC, 0644);
	return fd < 0 || write(fd, report, strlen(report)) < 0;
}
