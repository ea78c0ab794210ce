/*
 * Device rules as kernel/cgroup.py and kernel/programs.py give them, for a container whose kind they have
 * given them before. A device program is replaced by what Python made of the same program then.
 */
#define _GNU_SOURCE
#include "repeat.h"
#include "syscalls.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EFFECTIVE = 1, ALLOW_MULTI = 2, REPLACE = 4 };
#define PROGRAMS 64
#define PROGRAM_LIMIT (1 << 20)
#define TEXT_LIMIT ((size_t)1 << 20)

struct devices {
	int v1;		      /* where rules were written, or -1 */
	const struct line *rules[256];
	size_t rule_count;
	int cgroup;	      /* where programs were replaced */
	uint32_t flags;
	int old[PROGRAMS], new[PROGRAMS];
	size_t swapped;
};

/* A process's cgroup in the v1 devices hierarchy or in v2; false if it has none, or not where we can see. */
static bool member_of(char *text, int version, char out[PATH_MAX])
{
	for (char *line = text, *end; *line; line = end + 1) {
		end = strchrnul(line, '\n');
		char *controllers = memchr(line, ':', (size_t)(end - line));
		char *path = controllers ? memchr(controllers + 1, ':', (size_t)(end - controllers - 1)) : NULL;
		if (!path)
			return false;
		bool wanted = version == 2 ? path == controllers + 1 && *line == '0' && controllers == line + 1 : false;
		for (char *at = controllers + 1; version == 1 && at < path; at += strcspn(at, ",:") + 1)
			wanted |= strncmp(at, "devices", 7) == 0 && (at[7] == ',' || at[7] == ':');
		size_t length = (size_t)(end - path - 1);
		if (wanted) {
			if (length >= PATH_MAX || path[1] != '/')
				return false;
			memcpy(out, path + 1, length);
			out[length] = '\0';
			while (length > 1 && out[length - 1] == '/')
				out[--length] = '\0';
			return !strstr(out, "/..");
		}
		if (!*end)
			break;
	}
	return false;
}

static bool ends_with(const char *text, size_t length, const char *end)
{
	return length >= strlen(end) && memcmp(text + length - strlen(end), end, strlen(end)) == 0;
}

/* The unit of systemd's that a cgroup belongs to, as kernel/cgroup.py has it: the first below slices only. */
static void unit_in(const char *path, char out[NAME_MAX + 1])
{
	*out = '\0';
	for (size_t length; *path; path += length) {
		path += *path == '/';
		length = strcspn(path, "/");
		if (ends_with(path, length, ".scope") || ends_with(path, length, ".service")) {
			if (length <= NAME_MAX && strncmp(path, "user@", 5) != 0) {
				memcpy(out, path, length);
				out[length] = '\0';
			}
			return;
		}
		if (!ends_with(path, length, ".slice"))
			return;
	}
}

static bool unit_of(char *text, char out[NAME_MAX + 1])
{
	char path[PATH_MAX];
	*out = '\0';
	for (int version = 1; version <= 2 && !*out; version++)
		if (member_of(text, version, path))
			unit_in(path, out);
	return *out;
}

bool is_told_to_systemd(int process)
{
	char unit[NAME_MAX + 1], own[NAME_MAX + 1];
	size_t size;
	if (access("/run/systemd/private", F_OK) < 0)
		return false;
	char *theirs = read_file(process, "cgroup", TEXT_LIMIT, &size);
	char *ours = read_file(AT_FDCWD, "/proc/self/cgroup", TEXT_LIMIT, &size);
	bool told = !theirs || !ours || (unit_of(theirs, unit) && (!unit_of(ours, own) || strcmp(unit, own) != 0));
	free(theirs);
	free(ours);
	return told;
}

static bool holds(const char *directory, const char *member)
{
	size_t length = strcmp(directory, "/") ? strlen(directory) : 0;
	return strncmp(directory, member, length) == 0 && (member[length] == '/' || !member[length]);
}

/* Does one line of devices.list allow all of a rule ("c 195:* rwm")? */
static bool covers(const char *listed, const struct line *rule)
{
	char kind, major[16], minor[16], access[8];
	if (sscanf(listed, "%c %15[^:]:%15s %7s", &kind, major, minor, access) != 4 || kind != *rule->field[1])
		return false;
	if ((strcmp(major, "*") && strcmp(major, rule->field[2])) || (strcmp(minor, "*") && strcmp(minor, rule->field[3])))
		return false;
	return strspn(rule->field[4], access) == strlen(rule->field[4]);
}

static bool write_rule(int cgroup, const char *file, const struct line *rule)
{
	char text[64];
	int n = snprintf(text, sizeof text, "%s %s:%s %s", rule->field[1], rule->field[2], rule->field[3], rule->field[4]);
	int fd = openat(cgroup, file, O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, text, (size_t)n) == n;
	if (fd >= 0)
		close(fd);
	return done;
}

static bool allow_v1(struct devices *devices, int cgroup, const struct line *lines, size_t count)
{
	size_t size;
	char *list = read_file(cgroup, "devices.list", TEXT_LIMIT, &size);
	if (!list)
		return false;
	devices->v1 = cgroup;
	bool done = true, everything = strncmp(list, "a *:* rwm", 9) == 0;
	for (size_t i = 0; done && !everything && i < count; i++) {
		if (!is_kind(&lines[i], "rule"))
			continue;
		bool covered = false;
		for (const char *at = list; *at && !covered; at = strchrnul(at, '\n') + (*strchrnul(at, '\n') == '\n'))
			covered = covers(at, &lines[i]);
		if (covered)
			continue;
		done = devices->rule_count < sizeof devices->rules / sizeof *devices->rules &&
		       write_rule(cgroup, "devices.allow", &lines[i]);
		if (done)
			devices->rules[devices->rule_count++] = &lines[i];
	}
	free(list);
	return done;
}

/* What Python made of a program, if it has seen it; *program is the open program. */
static char *made_of(uint32_t id, int directory, const char *basis, const char *where, int *program, bool *same, size_t *size)
{
	char *old = NULL, *new = NULL, digest[65];
	*program = nvh_bpf_prog_fd(id);
	int length = *program < 0 ? -1 : nvh_bpf_prog_xlated(*program, NULL, 0);
	if (length > 0 && length <= PROGRAM_LIMIT && (old = malloc((size_t)length)) &&
	    nvh_bpf_prog_xlated(*program, old, (uint32_t)length) == length) {
		hex_digest(old, (size_t)length, digest);
		new = read_made(directory, 3, (const char *[]){ basis, digest, where }, size);
		*same = new && *size == (size_t)length && memcmp(old, new, *size) == 0;
	}
	free(old);
	return new;
}

static bool swap(struct devices *devices, int old, const char *insns, size_t size)
{
	char name[16] = "", *kept = NULL;
	if (size % 8 || devices->swapped == PROGRAMS || nvh_bpf_prog_name(old, name) < 0)
		return false;
	int new = nvh_bpf_prog_load(insns, (uint32_t)(size / 8), name, NULL, 0);
	/* The kernel may keep something else than was given. */
	bool done = new >= 0 && (kept = malloc(size)) && nvh_bpf_prog_xlated(new, kept, (uint32_t)size) == (int)size &&
		    memcmp(kept, insns, size) == 0;
	uint32_t flags = devices->flags & ALLOW_MULTI ? ALLOW_MULTI | REPLACE : devices->flags;
	done = done && nvh_bpf_prog_attach(devices->cgroup, new, flags, devices->flags & ALLOW_MULTI ? old : -1) >= 0;
	free(kept);
	if (!done) {
		if (new >= 0)
			close(new);
		return false;
	}
	devices->old[devices->swapped] = old;
	devices->new[devices->swapped++] = new;
	return true;
}

/* Let the programs of a directory allow the devices; those above it must do so already. */
static bool allow_v2(struct devices *devices, int cgroup, const char *basis, int directory)
{
	uint32_t own[PROGRAMS], all[PROGRAMS], flags = 0;
	int count = nvh_bpf_query(cgroup, 0, own, PROGRAMS, &devices->flags);
	int effective = nvh_bpf_query(cgroup, EFFECTIVE, all, PROGRAMS, &flags);
	devices->cgroup = cgroup;
	bool done = count >= 0 && effective >= 0;
	for (int pass = 0; pass < 2; pass++) /* first those above: they may refuse */
		for (int i = 0; done && i < (pass ? count : effective); i++) {
			uint32_t id = pass ? own[i] : all[i];
			bool is_own = pass, same = false;
			for (int k = 0; !pass && k < count; k++)
				is_own |= own[k] == id;
			if (!pass && is_own)
				continue;
			size_t size;
			int program;
			char *insns = made_of(id, directory, basis, pass ? "own" : "above", &program, &same, &size);
			done = insns && (same || (pass && swap(devices, program, insns, size)));
			if (program >= 0 && (!done || same))
				close(program);
			free(insns);
		}
	return done;
}

static bool has_programs(int cgroup)
{
	uint32_t flags;
	return nvh_bpf_query(cgroup, 0, NULL, 0, &flags) > 0;
}

/* Is a hierarchy mounted? */
static bool is_mounted(int version, const char *mounts, size_t size)
{
	const char *at = mounts, *end = mounts + size, *kind = version == 2 ? " - cgroup2 " : " - cgroup ";
	while ((at = memmem(at, (size_t)(end - at), kind, strlen(kind)))) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));
		if (version == 2 || memmem(at, (size_t)((stop ? stop : end) - at), "devices", 7))
			return true;
		at += 5;
	}
	return false;
}

static const struct line *hierarchy(const struct line *lines, size_t count, int version)
{
	for (size_t i = 0; i < count; i++)
		if (is_kind(&lines[i], "hierarchy") && lines[i].field[1][0] == '0' + version)
			return &lines[i];
	return NULL;
}

/* Open a cgroup by the mount that leads to it. */
static int open_cgroup(const struct line *mount, const char *cgroup)
{
	char path[2 * PATH_MAX];
	size_t cut = strcmp(mount->field[3], "/") ? strlen(mount->field[3]) : 0;
	if (strncmp(cgroup, mount->field[3], cut) != 0 || (cgroup[cut] && cgroup[cut] != '/') ||
	    snprintf(path, sizeof path, "%s%s", mount->field[2], cgroup + cut) >= (int)sizeof path)
		return -1;
	return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

/* Give the rules in one hierarchy; a cgroup that holds the runtime, too, is left alone. */
static bool allow(struct devices *devices, const struct line *mount, int version, char *theirs, char *ours, bool v1_too,
		  const struct line *lines, size_t count, const char *basis, int directory)
{
	char path[PATH_MAX], own[PATH_MAX];
	uint64_t device;
	struct stat st;
	if (!number(mount->field[4], &device) || stat(mount->field[2], &st) < 0 || st.st_dev != device ||
	    !member_of(theirs, version, path) || !member_of(ours, version, own))
		return false;
	size_t cut = strcmp(mount->field[3], "/") ? strlen(mount->field[3]) : 0;
	if (version == 1) {
		int cgroup = strlen(path) > cut && !holds(path, own) ? open_cgroup(mount, path) : -2;
		return cgroup == -2 || (cgroup >= 0 && allow_v1(devices, cgroup, lines, count));
	}
	int lowest = -1;
	for (int depth = 0; depth < PROGRAMS && strlen(path) > cut && !holds(path, own); depth++) {
		int cgroup = open_cgroup(mount, path);
		if (cgroup < 0)
			return false;
		if (has_programs(cgroup))
			return allow_v2(devices, cgroup, basis, directory);
		if (lowest < 0)
			lowest = cgroup;
		else
			close(cgroup);
		*strrchr(path, '/') = '\0';
	}
	if (v1_too || lowest < 0) /* v1 decides; or the runtime's own */
		return true;
	return allow_v2(devices, lowest, basis, directory);
}

void end_devices(struct devices *devices, bool keep)
{
	for (size_t i = devices->swapped; i-- > 0;) {
		uint32_t flags = devices->flags & ALLOW_MULTI ? ALLOW_MULTI | REPLACE : devices->flags;
		if (!keep)
			nvh_bpf_prog_attach(devices->cgroup, devices->old[i], flags,
					    devices->flags & ALLOW_MULTI ? devices->new[i] : -1);
		close(devices->old[i]);
		close(devices->new[i]);
	}
	for (size_t i = 0; !keep && i < devices->rule_count; i++)
		write_rule(devices->v1, "devices.deny", devices->rules[i]);
	if (devices->v1 >= 0)
		close(devices->v1);
	if (devices->cgroup >= 0)
		close(devices->cgroup);
	free(devices);
}

struct devices *allow_devices(const struct line *lines, size_t count, int process, const char *host_mounts,
			      size_t mounts_size, int directory)
{
	struct devices *devices = calloc(1, sizeof *devices);
	const struct line *mounts[3] = { NULL, hierarchy(lines, count, 1), hierarchy(lines, count, 2) };
	const char *basis = "";
	size_t size;
	char *theirs = read_file(process, "cgroup", TEXT_LIMIT, &size);
	char *ours = read_file(AT_FDCWD, "/proc/self/cgroup", TEXT_LIMIT, &size);
	for (size_t i = 0; i < count; i++)
		if (is_kind(&lines[i], "programs"))
			basis = lines[i].field[1];
	bool done = devices && theirs && ours && *basis;
	if (devices)
		devices->v1 = devices->cgroup = -1;
	for (int version = 1; done && version <= 2; version++)
		done = (mounts[version] != NULL) == is_mounted(version, host_mounts, mounts_size) &&
		       (!mounts[version] || allow(devices, mounts[version], version, theirs, ours, mounts[1] != NULL, lines,
						  count, basis, directory));
	free(theirs);
	free(ours);
	if (!done && devices) {
		end_devices(devices, false);
		devices = NULL;
	}
	return devices;
}
