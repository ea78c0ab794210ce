/*
 * What Python did for a container of the same kind, done again. Nothing is decided here, and nothing of
 * the image understood: every look that the decision was made from is taken again, and only where all give
 * the same answers, the operations are repeated, by the same functions that Python calls. Whatever
 * differs, is new or fails: what was done is undone, and Python starts.
 */
#define _GNU_SOURCE
#include "repeat.h"
#include "launcher.h"
#include "root.h"
#include "splice.h"
#include "syscalls.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define DIRECTORY "/run/nvhook/recordings"
#define VARIANTS 8
#define WHOLE ((size_t)1 << 20)
#define OPERATIONS 2048
#define TABLE_LIMIT ((size_t)32 << 20)
#define FILE_LIMIT ((size_t)16 << 20)
#define SYSTEMD_SOCKET "/run/systemd/private"
#define SYSTEMD_PATIENCE 5 /* seconds for each answer */
#define PRIVATE (1 << 18) /* MS_PRIVATE */
#define ALL_ATTRIBUTES 0xF
#define TMPFS_MAGIC 0x01021994

/* A container that is created but not yet pivoted. */
struct target {
	int process, root, mounts; /* /proc/PID, its root directory, its mount namespace */
	uint32_t uid, gid;
};

struct repeat {
	const char *context; /* what every line of the log says */
	struct target target;
	int directory;
	char *text; /* the recording: lines point into it */
	struct line *lines;
	int *sources;
	size_t count;
};

/* ---- the container ---- */

/* The caller's id for the namespace's 0; false if it has none. */
static bool mapped_root(int process, const char *name, uint32_t *out)
{
	size_t size;
	unsigned inside, outside, length;
	char *map = read_file(process, name, FILE_LIMIT, &size);
	bool found = false;
	for (char *at = map; at && *at && !found; at = strchrnul(at, '\n') + (*strchrnul(at, '\n') == '\n'))
		if (sscanf(at, "%u %u %u", &inside, &outside, &length) == 3 && inside == 0) {
			*out = outside;
			found = true;
		}
	free(map);
	return found;
}

/* Is the process in a namespace of its own? -1: it has gone. */
static int has_own(int process, const char *name)
{
	char path[40], theirs[64] = "", ours[64] = "";
	snprintf(path, sizeof path, "/proc/self/%s", name);
	if (readlinkat(process, name, theirs, sizeof theirs - 1) < 0 || readlink(path, ours, sizeof ours - 1) < 0)
		return -1;
	return strcmp(theirs, ours) != 0;
}

static bool open_target(const struct state *state, const struct request *request, struct target *target)
{
	char path[2 * PATH_MAX];
	struct stat root, host;
	*target = (struct target){ .root = -1, .mounts = -1, .uid = geteuid(), .gid = getegid() };
	snprintf(path, sizeof path, "/proc/%d", state->pid);
	target->process = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (target->process < 0 || has_own(target->process, "ns/mnt") != 1)
		return false;
	int own_users = has_own(target->process, "ns/user");
	if (own_users < 0 || (own_users && (!mapped_root(target->process, "uid_map", &target->uid) ||
					    !mapped_root(target->process, "gid_map", &target->gid))))
		return false;
	target->mounts = openat(target->process, "ns/mnt", O_RDONLY | O_CLOEXEC);
	/* Not pivoted yet: its root is the host's, with the container's mounts on it. */
	int top = openat(target->process, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
	bool relative = *request->root_path != '/';
	snprintf(path, sizeof path, "%s%s%s", relative ? state->bundle : "", relative ? "/" : "", request->root_path);
	target->root = top < 0 ? -1 : nvh_in_root(top, path, O_PATH | O_DIRECTORY);
	if (top >= 0)
		close(top);
	return target->mounts >= 0 && target->root >= 0 && fstat(target->root, &root) == 0 && stat("/", &host) == 0 &&
	       !(root.st_dev == host.st_dev && root.st_ino == host.st_ino);
}

static void close_target(const struct target *target)
{
	const int fds[] = { target->process, target->root, target->mounts };
	for (size_t i = 0; i < 3; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

/* ---- the recording ---- */

static const struct {
	const char *kind;
	int fields, numbers; /* the last so many fields are numbers */
} operations[] = {
	{ "hierarchy", 5, 1 }, { "rule", 5, 0 },    { "programs", 2, 0 }, { "mount", 6, 3 }, { "device", 6, 3 },
	{ "mask", 3, 1 },      { "symlink", 3, 0 }, { "file", 4, 2 },	  { "merge", 3, 0 }, { "there", 4, 2 },
	{ "log", 5, 0 },       { "splice", 3, 2 }, { "unit", 5, 0 },  { "end", 1, 0 },
};

static bool is_operation(const struct line *line)
{
	uint64_t value;
	for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
		if (is_kind(line, operations[i].kind)) {
			for (int n = 1; n <= operations[i].numbers; n++)
				if (line->count <= n || !number(line->field[line->count - n], &value))
					return false;
			return line->count == operations[i].fields;
		}
	return false;
}

/* Open the recordings, which must be ours alone; -1. */
static int open_recordings(void)
{
	struct stat st;
	int fd = open(DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0 && (fstat(fd, &st) < 0 || st.st_uid != geteuid() || st.st_mode & 077)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Read a recording, up to its end; take every look again. False: it does not hold, or is none. */
bool read_recording(char *text, size_t size, int root, struct line *lines, size_t *count)
{
	struct recording recording = { text, text + size };
	struct line line;
	*count = 0;
	if (!read_line(&recording, &line) || line.count != 1 || !is_kind(&line, SCHEMA))
		return false;
	while (read_line(&recording, &line)) {
		enum look look = *count ? NO_LOOK : look_again(&line, root);
		if (look == SAME)
			continue;
		if (look == DIFFERENT || !is_operation(&line) || *count == OPERATIONS)
			return false;
		lines[(*count)++] = line;
		if (is_kind(&line, "end"))
			return recording.at == recording.end;
	}
	return false;
}

/* Find the recording that holds. words: the door and its arguments, each ended by a zero byte. */
static bool find(struct repeat *r, const struct request *request, const char *words, size_t words_size)
{
	char name[80], key[65];
	nvh_recording_key(words, words_size, request->digest, key);
	for (int variant = 0; variant < VARIANTS; variant++) {
		size_t size;
		struct stat st;
		snprintf(name, sizeof name, "%s.%d", key, variant);
		int fd = openat(r->directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (fd < 0)
			continue;
		bool ours = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid();
		r->text = ours ? read_descriptor(fd, WHOLE, &size) : NULL;
		close(fd);
		if (r->text && read_recording(r->text, size, r->target.root, r->lines, &r->count))
			return true;
		free(r->text);
		r->text = NULL;
	}
	return false;
}

static uint64_t field(const struct line *line, int index)
{
	uint64_t value = 0;
	number(line->field[index], &value); /* is_operation has seen that it is one */
	return value;
}

/* ---- what comes from the host ---- */

/* Clone what a line mounts, if it still is what it was. */
static bool open_source(const struct line *line, int *source)
{
	struct stat st;
	*source = -1;
	if (is_kind(line, "mask"))
		*source = nvh_tmpfs("0555", "64k");
	else if (is_kind(line, "mount") || is_kind(line, "device")) {
		uint64_t attributes = field(line, 3), first = field(line, 4), second = field(line, 5);
		*source = nvh_clone_mount(line->field[1], attributes, ALL_ATTRIBUTES & ~attributes, PRIVATE);
		if (*source < 0 || fstat(*source, &st) < 0)
			return false;
		return is_kind(line, "mount") ? st.st_dev == first && st.st_ino == second
					      : S_ISCHR(st.st_mode) && major(st.st_rdev) == first && minor(st.st_rdev) == second;
	} else
		return true;
	return *source >= 0;
}

/* ---- in the container ---- */

/* Let a file of the container become what Python made of the same content. */
static bool merge(struct nvh_root *root, const struct repeat *r, const struct line *line)
{
	char digest[65] = "-";
	size_t size = 0, made_size;
	char *old = NULL;
	struct stat st;
	int handle = nvh_in_root(r->target.root, line->field[1], O_PATH);
	if (handle >= 0) {
		int fd = nvh_open_regular(nvh_root_fds(root), handle, &st);
		old = fd < 0 ? NULL : read_descriptor(fd, FILE_LIMIT, &size);
		if (fd >= 0)
			close(fd);
		close(handle);
		if (!old)
			return false;
		hex_digest(old, size, digest);
	} else if (handle != -ENOENT)
		return false;
	char *made = read_made(r->directory, 2, (const char *[]){ line->field[2], digest }, &made_size);
	bool done = made;
	if (made && !(made_size == size && (!size || memcmp(made, old, size) == 0)))
		done = nvh_root_write(root, line->field[1], made, made_size, 0644) == 0;
	free(old);
	free(made);
	return done;
}

/* By another hook of the same container, for example: then Python sees what there is to do. */
static bool is_masked(const struct repeat *r, const char *path)
{
	int fd = nvh_in_root(r->target.root, path, O_PATH);
	bool masked = fd >= 0 && nvh_filesystem_magic(fd) == TMPFS_MAGIC;
	if (fd >= 0)
		close(fd);
	return masked;
}

static bool operate(struct nvh_root *root, const struct repeat *r, const struct line *line, int source)
{
	const char *path = is_kind(line, "mount") || is_kind(line, "device") ? line->field[2] : line->field[1];
	struct stat st;
	if (is_kind(line, "mount") || is_kind(line, "device"))
		return nvh_root_attach(root, path, source) >= 0;
	if (is_kind(line, "mask"))
		return !is_masked(r, path) && nvh_root_cover(root, path, source) == 1;
	if (is_kind(line, "symlink"))
		return nvh_root_link(root, path, line->field[2]) >= 0;
	if (is_kind(line, "file"))
		return nvh_root_write(root, path, line->data, line->size, (uint32_t)field(line, 2)) == 0;
	if (is_kind(line, "there")) {
		int fd = nvh_in_root(r->target.root, path, O_PATH | O_NOFOLLOW);
		bool same = fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == field(line, 2) && st.st_ino == field(line, 3);
		if (fd >= 0)
			close(fd);
		return same;
	}
	return true;
}

/* Do everything that happens in the container's mount namespace. */
static bool work(struct nvh_root *root, const struct repeat *r)
{
	/* A stricter one, an engine's or an operator's, would close the driver to the users inside. */
	mode_t before = umask(022);
	bool done = true;
	for (size_t i = 0; done && i < r->count; i++)
		done = operate(root, r, &r->lines[i], r->sources[i]);
	for (size_t i = 0; done && i < r->count; i++)
		if (is_kind(&r->lines[i], "mask")) {
			uint64_t attributes = field(&r->lines[i], 2);
			done = nvh_mount_setattr(r->sources[i], 0, attributes, ALL_ATTRIBUTES & ~attributes, 0) == 0;
		}
	for (size_t i = 0; done && i < r->count; i++)
		if (is_kind(&r->lines[i], "merge"))
			done = merge(root, r, &r->lines[i]);
	if (!done)
		nvh_root_undo_all(root);
	umask(before);
	return done;
}

/* ---- the log ---- */

static void write_log(const struct repeat *r)
{
	char line[4096], stamp[32];
	time_t now = time(NULL);
	strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
	for (size_t i = 0; i < r->count; i++) {
		const struct line *each = &r->lines[i];
		if (!is_kind(each, "log"))
			continue;
		int n = snprintf(line, sizeof line, "time=%s level=%s pid=%d %s %s%s replayed=true\n", stamp,
				 each->field[2], getpid(), each->field[3], r->context, each->field[4]);
		int fd = open(each->field[1], O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0640);
		if (fd >= 0 && n > 0 && n < (int)sizeof line) {
			ssize_t told = write(fd, line, (size_t)n);
			(void)told;
		}
		if (fd >= 0)
			close(fd);
	}
}

/* ---- all of it ---- */

/* Let systemd know of the devices, where the container's cgroup is a unit of its. */
static bool tell_systemd(const struct repeat *r)
{
	char unit[NAME_MAX + 1], why[256], devices[8192];
	size_t at = 0;
	for (size_t i = 0; i < r->count && at < sizeof devices; i++)
		if (is_kind(&r->lines[i], "unit"))
			at += (size_t)snprintf(devices + at, sizeof devices - at, "%s %s:%s %s\n", r->lines[i].field[1],
					       r->lines[i].field[2], r->lines[i].field[3], r->lines[i].field[4]);
	if (!at || access(SYSTEMD_SOCKET, F_OK) < 0)
		return true;
	if (at >= sizeof devices || !unit_of(r->target.process, unit, sizeof unit))
		return false;
	return !*unit || nvh_systemd_devices(SYSTEMD_SOCKET, unit, devices, 0, SYSTEMD_PATIENCE, why) >= 0;
}

/* Operations on the container; 0 done, 1 undone, -1: we could not come back. */
static int change(const struct repeat *r, const char *mounts, size_t mounts_size, const char *host, size_t host_size)
{
	int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC), kept = fcntl(r->target.root, F_DUPFD_CLOEXEC, 0);
	int here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC); /* Python's arguments may be relative to it */
	struct nvh_root *root = home < 0 || kept < 0 ? NULL
						     : nvh_root_open(kept, r->target.uid, r->target.gid, mounts, mounts_size,
								     host, host_size, NVH_CREATED, NULL, NULL);
	if (!root || nvh_setns(r->target.mounts, CLONE_NEWNS) < 0) {
		if (root)
			nvh_root_close(root);
		return 1;
	}
	bool done = work(root, r);
	int back = nvh_setns(home, CLONE_NEWNS);
	if (done && back == 0 && !tell_systemd(r)) {
		done = false;
		back = nvh_setns(r->target.mounts, CLONE_NEWNS);
		if (back == 0) {
			nvh_root_undo_all(root);
			back = nvh_setns(home, CLONE_NEWNS);
		}
	}
	if (back < 0)
		nvh_root_undo_all(root);
	close(home);
	nvh_root_close(root);
	if (here >= 0 && fchdir(here) == 0)
		close(here);
	return back < 0 ? -1 : !done;
}

static int repeat(struct repeat *r)
{
	size_t host_size, mounts_size;
	char *host = read_file(AT_FDCWD, "/proc/self/mountinfo", TABLE_LIMIT, &host_size);
	char *mounts = read_file(r->target.process, "mountinfo", TABLE_LIMIT, &mounts_size);
	struct devices *devices = NULL;
	bool ready = host && mounts, has_rules = false;
	for (size_t i = 0; i < r->count; i++) {
		r->sources[i] = -1;
		has_rules |= is_kind(&r->lines[i], "rule");
	}
	for (size_t i = 0; ready && i < r->count; i++)
		ready = open_source(&r->lines[i], &r->sources[i]);
	if (ready && has_rules)
		ready = (devices = allow_devices(r->lines, r->count, r->target.process, host, host_size, r->directory));
	int failed = ready ? change(r, mounts, mounts_size, host, host_size) : 1;
	if (devices)
		end_devices(devices, !failed);
	for (size_t i = 0; i < r->count; i++)
		if (r->sources[i] >= 0)
			close(r->sources[i]);
	free(host);
	free(mounts);
	if (failed < 0)
		return fail("can't leave the container's mount namespace", "try again");
	if (!failed)
		write_log(r);
	return failed ? -1 : 0;
}

/* Only a name that stands in the log as it is. */
static bool is_plain(const char *name)
{
	return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:@+") == strlen(name);
}

static size_t add_words(char *out, size_t size, size_t at, const char *word)
{
	size_t length = strlen(word) + 1;
	if (at > size || length > size - at)
		return size + 1;
	memcpy(out + at, word, length);
	return at + length;
}

/* Make ready to repeat, unless it can't be. */
static bool begin(struct repeat *r, const struct request *request, const char *name)
{
	*r = (struct repeat){ .target = { -1, -1, -1, 0, 0 }, .directory = -1 };
	if (!request->repeatable || !is_plain(name) || getenv("NVHOOK_DEBUG"))
		return false;
	r->directory = open_recordings();
	r->lines = r->directory < 0 ? NULL : calloc(OPERATIONS, sizeof *r->lines);
	r->sources = r->directory < 0 ? NULL : calloc(OPERATIONS, sizeof *r->sources);
	return r->lines && r->sources;
}

static void end(struct repeat *r)
{
	close_target(&r->target);
	if (r->directory >= 0)
		close(r->directory);
	free(r->text);
	free(r->lines);
	free(r->sources);
}

int repeat_hook(const struct state *state, const struct request *request, int argc, char **argv)
{
	char words[2 * PATH_MAX], context[sizeof state->id + 16];
	struct repeat r;
	int status = -1;
	size_t size = add_words(words, sizeof words, 0, SCHEMA);
	size = add_words(words, sizeof words, size, NVHOOK_VERSION);
	for (int i = 1; i < argc; i++)
		size = add_words(words, sizeof words, size, argv[i]);
	snprintf(context, sizeof context, "container=%s", state->id);
	if (begin(&r, request, state->id) && size <= sizeof words && state->pid > 1 &&
	    open_target(state, request, &r.target) && find(&r, request, words, size)) {
		r.context = context;
		status = repeat(&r);
	}
	end(&r);
	return status;
}

/* Put a new file in the place of one, with its owner and permissions. */
static bool replace_document(const char *document, const char *text, size_t size)
{
	char directory[PATH_MAX];
	struct stat st;
	const char *slash = strrchr(document, '/');
	if (!slash || stat(document, &st) < 0 ||
	    !path_of(directory, sizeof directory, "%.*s/", (int)(slash - document), document))
		return false;
	int at = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	bool done = at >= 0 && nvh_replace_file(at, slash + 1, text, size, st.st_mode, st.st_uid, st.st_gid) == 0;
	if (at >= 0)
		close(at);
	return done;
}

int repeat_edit(const char *document, const char *bundle, const char *launcher, const char *config, const char *text,
		size_t size, const struct request *request)
{
	char words[3 * PATH_MAX], context[PATH_MAX + 16];
	const char *const said[] = { SCHEMA, NVHOOK_VERSION, "runtime", config, launcher };
	struct span items[ADDITIONS] = { { NULL, NULL } };
	struct repeat r;
	size_t words_size = 0, spliced_size;
	for (size_t i = 0; i < sizeof said / sizeof *said; i++)
		words_size = add_words(words, sizeof words, words_size, said[i]);
	snprintf(context, sizeof context, "bundle=%s", bundle);
	bool done = begin(&r, request, bundle) && !request->gpu_hooks && words_size <= sizeof words &&
		    find(&r, request, words, words_size), any = false;
	for (size_t i = 0; done && i < r.count; i++)
		if (is_kind(&r.lines[i], "splice")) {
			uint64_t list = field(&r.lines[i], 1);
			done = list < ADDITIONS && !items[list].from;
			if (done)
				items[list] = (struct span){ r.lines[i].data, r.lines[i].data + r.lines[i].size };
			any = true;
		}
	if (done && any) {
		char *spliced = splice_items(text, size, request, items, &spliced_size);
		done = spliced && replace_document(document, spliced, spliced_size);
		free(spliced);
	}
	if (done) {
		r.context = context;
		write_log(&r);
	}
	end(&r);
	return done ? 0 : -1;
}
