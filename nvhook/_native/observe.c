/* The looks that a decision was made from, taken again: the same answers as nvhook/observations.py gives. */
#define _GNU_SOURCE
#include "repeat.h"
#include "root.h"
#include "blake2b.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ANSWER 160
#define NAMES 65536
#define PIECE ((uint64_t)16 << 20)

/* Only these mean that something is not there; what failed otherwise is no answer, and equals none. */
static bool is_absent(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP; }

static void absent(char *answer, int error) { strcpy(answer, is_absent(error) ? "-" : ""); }

static void text(const char *path, uint64_t limit, char *answer)
{
	/* What is longer is cut off, as there. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	char *data = fd < 0 ? NULL : malloc(limit + 1);
	size_t have = 0;
	ssize_t n = 0;
	while (data && have < limit && (n = read(fd, data + have, limit - have)) > 0)
		have += (size_t)n;
	if (data && n >= 0)
		hex_digest(data, have, answer);
	else if (fd < 0 || errno == EISDIR)
		absent(answer, fd < 0 ? errno : ENOENT);
	free(data);
	if (fd >= 0)
		close(fd);
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The digest of the names in an open directory that begin with a prefix, each with its inode if wanted. */
static void names(DIR *directory, const char *prefix, bool with_inode, char *answer)
{
	char **found = NULL;
	size_t count = 0, room = 0;
	bool complete = directory;
	if (!directory)
		absent(answer, errno);
	for (struct dirent *each; complete && (each = readdir(directory));) {
		if (strcmp(each->d_name, ".") == 0 || strcmp(each->d_name, "..") == 0 ||
		    strncmp(each->d_name, prefix, strlen(prefix)) != 0)
			continue;
		if (count == room) {
			char **more = room < NAMES ? realloc(found, (room = room ? room * 2 : 64) * sizeof *found) : NULL;
			if (!more) {
				complete = false;
				break;
			}
			found = more;
		}
		int n = with_inode ? asprintf(&found[count], "%s=%llu", each->d_name, (unsigned long long)each->d_ino)
				   : asprintf(&found[count], "%s", each->d_name);
		complete = n >= 0;
		count += n >= 0;
	}
	if (complete) {
		struct blake2b hash;
		uint8_t digest[32];
		if (count)
			qsort(found, count, sizeof *found, by_name);
		blake2b_start(&hash);
		for (size_t i = 0; i < count; i++)
			blake2b_add(&hash, found[i], strlen(found[i]) + 1);
		blake2b_end(&hash, digest);
		for (int i = 0; i < 32; i++)
			snprintf(answer + 2 * i, 3, "%02x", digest[i]);
	} else if (directory)
		*answer = '\0'; /* too many, or no memory: not the same as none */
	while (count)
		free(found[--count]);
	free(found);
	if (directory)
		closedir(directory);
}

#define LL(value) ((unsigned long long)(value))
#define NS(time) (LL((time).tv_sec) * 1000000000ULL + LL((time).tv_nsec))

static void node(const char *path, char *answer)
{
	struct stat st;
	if (lstat(path, &st) == 0)
		snprintf(answer, ANSWER, "%u:%llu:%u:%u", st.st_mode, LL(st.st_rdev), st.st_uid, st.st_gid);
	else
		absent(answer, errno);
}

static void stamp(const char *path, char *answer)
{
	struct stat st;
	if (stat(path, &st) == 0)
		snprintf(answer, ANSWER, "%llu:%llu:%llu:%llu:%llu", LL(st.st_dev), LL(st.st_ino), LL(st.st_size),
			 NS(st.st_mtim), NS(st.st_ctim));
	else
		absent(answer, errno);
}

/* The path of a descriptor, without links; 0 if it can't be told. */
static size_t path_of_descriptor(int fd, char out[PATH_MAX])
{
	char name[32];
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(name, out, PATH_MAX - 1);
	out[n > 0 ? n : 0] = '\0';
	return n > 0 ? (size_t)n : 0;
}

static void place(const char *root, const char *path, char *answer)
{
	struct stat st;
	char above[PATH_MAX], all[PATH_MAX];
	int top = open(*root ? root : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int fd = top < 0 ? -errno : nvh_in_root(top, path, O_PATH);
	if (fd >= 0 && fstat(fd, &st) == 0) {
		size_t cut = path_of_descriptor(top, above), length = path_of_descriptor(fd, all);
		if (cut == 1) /* "/" */
			cut = 0;
		bool inside = length > cut && memcmp(above, all, cut) == 0;
		snprintf(answer, PATH_MAX + ANSWER, "%llu:%llu:%u:%u:%s", LL(st.st_dev), LL(st.st_ino), st.st_mode, st.st_uid,
			 inside ? all + cut : "");
	} else if (fd < 0)
		absent(answer, -fd);
	if (fd >= 0)
		close(fd);
	if (top >= 0)
		close(top);
}

/* ---- the container's root ---- */

/* 1: it is there; 0: it is not; -1: nobody knows. */
static int identity(int root, const char *path, struct stat *st)
{
	int fd = nvh_in_root(root, path, O_PATH);
	int there = fd >= 0 ? (fstat(fd, st) == 0 ? 1 : -1) : is_absent(-fd) ? 0 : -1;
	if (fd >= 0)
		close(fd);
	return there;
}

/* Pieces of a regular file: "OFFSET+SIZE,OFFSET+SIZE". */
static void bytes(int root, const char *path, const char *ranges, char *answer)
{
	struct stat st;
	struct blake2b hash;
	uint8_t digest[32];
	int handle = nvh_in_root(root, path, O_PATH), fd = -1;
	int fds = handle < 0 ? -1 : open("/proc/self/fd", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fds >= 0) {
		fd = nvh_open_regular(fds, handle, &st);
		close(fds);
	}
	if (handle >= 0)
		close(handle);
	if (fd < 0) {
		if (handle == -ENOENT)
			absent(answer, ENOENT);
		return;
	}
	blake2b_start(&hash);
	bool complete = true;
	while (complete && *ranges) {
		char *rest;
		uint64_t offset = strtoull(ranges, &rest, 10), size = *rest == '+' ? strtoull(rest + 1, &rest, 10) : PIECE + 1;
		char *data = size <= PIECE && offset <= INT64_MAX ? malloc(size + 1) : NULL;
		ssize_t n = data ? pread(fd, data, size, (off_t)offset) : -1;
		if (n >= 0)
			blake2b_add(&hash, data, (size_t)n);
		free(data);
		complete = n >= 0 && (*rest == ',' || !*rest);
		ranges = rest + (*rest == ',');
	}
	close(fd);
	blake2b_end(&hash, digest);
	for (int i = 0; i < 32; i++)
		snprintf(answer + 2 * i, 3, "%02x", digest[i]);
	if (!complete)
		*answer = '\0';
}

enum look look_again(const struct line *line, int root)
{
	static const struct {
		const char *kind;
		int fields;
	} kinds[] = { { "text", 4 },  { "names", 4 }, { "inodes", 4 }, { "node", 3 },	 { "stamp", 3 }, { "link", 3 },
		      { "place", 4 }, { "has", 3 },   { "same", 4 },   { "entries", 3 }, { "bytes", 4 } };
	size_t kind = 0, count = sizeof kinds / sizeof *kinds;
	while (kind < count && !is_kind(line, kinds[kind].kind))
		kind++;
	if (kind == count)
		return NO_LOOK;
	if (line->count != kinds[kind].fields || (kind >= 7 && root < 0))
		return DIFFERENT;
	const char *first = line->field[1], *second = line->field[2], *recorded = line->field[line->count - 1];
	char answer[PATH_MAX + ANSWER];
	struct stat one, other;
	uint64_t limit;
	ssize_t n;
	*answer = '\0';
	switch (kind) {
	case 0:
		if (!number(second, &limit) || limit > PIECE)
			return DIFFERENT;
		text(first, limit, answer);
		break;
	case 1:
	case 2:
		names(opendir(*first ? first : "/"), second, kind == 2, answer);
		break;
	case 3:
		node(first, answer);
		break;
	case 4:
		stamp(first, answer);
		break;
	case 5:
		n = readlink(first, answer, PATH_MAX - 1);
		if (n >= 0)
			answer[n] = '\0';
		else
			absent(answer, errno == EINVAL ? ENOENT : errno);
		break;
	case 6:
		place(first, second, answer);
		break;
	case 7:
		n = identity(root, first, &one);
		strcpy(answer, n < 0 ? "" : n ? "1" : "0");
		break;
	case 8: {
		int here = identity(root, first, &one), there = identity(root, second, &other);
		bool same = here > 0 && there > 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
		strcpy(answer, here < 0 || there < 0 ? "" : same ? "1" : "0");
		break;
	}
	case 9: {
		int fd = nvh_in_root(root, first, O_RDONLY | O_DIRECTORY);
		errno = fd < 0 ? -fd : 0;
		names(fd < 0 ? NULL : fdopendir(fd), "", false, answer);
		break;
	}
	default:
		bytes(root, first, second, answer);
	}
	return strcmp(answer, recorded) == 0 ? SAME : DIFFERENT;
}
