/*
 * A recording, as the launcher reads it before it repeats anything: whatever it says, only lines that are
 * whole get through. Every path it names is looked for in a small directory, and the root is that, too.
 */
#define _GNU_SOURCE
#define NVHOOK_VERSION "0" /* meson says it elsewhere */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "root.h"

static int fuzz_place = -1; /* the directory */

static int open_there(const char *path, int flags) { return nvh_in_root(fuzz_place, path, (uint64_t)flags); }

static DIR *list_there(const char *path)
{
	int fd = open_there(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? NULL : fdopendir(fd);
}

static int status_there(const char *path, struct stat *st, int flags)
{
	int fd = open_there(path, O_PATH | flags), done = fd < 0 ? -1 : fstat(fd, st);
	if (fd >= 0)
		close(fd);
	return done;
}

static ssize_t link_there(const char *path, char *out, size_t size)
{
	int fd = open_there(path, O_PATH | O_NOFOLLOW);
	ssize_t n = fd < 0 ? -1 : readlinkat(fd, "", out, size);
	if (fd >= 0)
		close(fd);
	return n;
}

#define open(path, flags) (strncmp(path, "/proc/self/fd/", 14) ? open_there(path, flags) : openat(fuzz_place, path, flags))
#define opendir(path) list_there(path)
#define stat(path, st) status_there(path, st, 0)
#define lstat(path, st) status_there(path, st, O_NOFOLLOW)
#define readlink(path, out, size) link_there(path, out, size)
#include "observe.c"
#undef open
#undef opendir
#undef stat
#undef lstat
#undef readlink
#undef NAMES
#include "repeat.c"
#include "launcher_stubs.h"

static void make_place(void)
{
	char path[] = "/tmp/nvhook-fuzz-XXXXXX";
	if (!mkdtemp(path) || (fuzz_place = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
		abort();
	if (mkdirat(fuzz_place, "etc", 0755) < 0 || mkdirat(fuzz_place, "dev", 0755) < 0 || symlinkat("etc", fuzz_place, "link") < 0 ||
	    nvh_replace_file(fuzz_place, "file", "text\n", 5, 0644, (uint32_t)-1, 0) < 0)
		abort();
}

static void remove_place(void)
{
	char path[64], name[32];
	snprintf(name, sizeof name, "/proc/self/fd/%d", fuzz_place);
	ssize_t n = readlink(name, path, sizeof path - 1);
	unlinkat(fuzz_place, "file", 0);
	unlinkat(fuzz_place, "link", 0);
	unlinkat(fuzz_place, "etc", AT_REMOVEDIR);
	unlinkat(fuzz_place, "dev", AT_REMOVEDIR);
	if (n > 0) {
		path[n] = '\0';
		rmdir(path);
	}
}

static void check_line(const char *text, size_t size, const struct line *line)
{
	if (!is_operation(line) || line->count > FIELDS)
		abort();
	for (int i = 0; i < line->count; i++)
		if (line->field[i] < text || line->field[i] + strlen(line->field[i]) >= text + size)
			abort();
	if (line->size && (line->data < text || line->data + line->size >= text + size))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct line lines[OPERATIONS];
	size_t count;
	if (fuzz_place < 0) {
		make_place();
		atexit(remove_place);
	}
	char *text = malloc(size + 1);
	memcpy(text, data, size);
	text[size] = '\0'; /* as read_descriptor does */
	if (read_recording(text, size, fuzz_place, lines, &count)) {
		if (!count || count > OPERATIONS || !is_kind(&lines[count - 1], "end"))
			abort();
		for (size_t i = 0; i < count; i++)
			check_line(text, size, &lines[i]);
	}
	free(text);
	return 0;
}
