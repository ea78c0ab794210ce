/* What a container can reach: probe COMMAND [ARGUMENTS] [COMMAND ...], one result a line.
 *
 *   open PATH             open it, and say OK or the errno's name
 *   mknod PATH MAJ MIN    make a character device
 *   chmod PATH MODE       change the mode (octal)
 *   type PATH             what is there, links not followed
 *   write PATH            open an existing file for writing
 *   hold PATH             take a handle of it (O_PATH) and keep that
 *   wait PATH             until that path exists (all waiting together: 30 s)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const char *verdict(long rc) { return rc >= 0 ? "OK" : strerrorname_np(errno); }

static const char *type_of(const char *path)
{
	static char text[64];
	struct stat st;
	if (lstat(path, &st) < 0)
		return strerrorname_np(errno);
	switch (st.st_mode & S_IFMT) {
	case S_IFCHR:
		snprintf(text, sizeof text, "device %u:%u", major(st.st_rdev), minor(st.st_rdev));
		return text;
	case S_IFREG:
		return "file";
	case S_IFDIR:
		return "directory";
	case S_IFLNK:
		return "link";
	case S_IFSOCK:
		return "socket";
	default:
		return "other";
	}
}

static const char *wait_for(const char *path)
{
	static int left = 3000;
	for (; access(path, F_OK) < 0; usleep(10000))
		if (--left < 0)
			return "absent";
	return "OK";
}

int main(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i += 2) {
		const char *command = argv[i], *path = argv[i + 1], *answer = "unknown command";
		if (!strcmp(command, "open"))
			answer = verdict(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
		else if (!strcmp(command, "write"))
			answer = verdict(open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC));
		else if (!strcmp(command, "hold"))
			answer = verdict(open(path, O_PATH));
		else if (!strcmp(command, "type"))
			answer = type_of(path);
		else if (!strcmp(command, "wait"))
			answer = wait_for(path);
		else if (!strcmp(command, "chmod") && i + 2 < argc) {
			answer = verdict(chmod(path, (mode_t)strtoul(argv[i + 2], NULL, 8)));
			i++;
		} else if (!strcmp(command, "mknod") && i + 3 < argc) {
			dev_t numbers = makedev(strtoul(argv[i + 2], NULL, 10), strtoul(argv[i + 3], NULL, 10));
			answer = verdict(mknod(path, S_IFCHR | 0666, numbers));
			i += 2;
		}
		printf("%s %s = %s\n", command, path, answer);
		fflush(stdout);
	}
	return 0;
}
