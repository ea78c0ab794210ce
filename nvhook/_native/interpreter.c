/*
 * Starting Python: where things are, relative to this executable X/bin/nvhook:
 *   the package      X/nvhook, or X/lib/python3.N/{site,dist}-packages/nvhook
 *   the interpreter  X/bin/python3, or /usr/bin/python3, /usr/local/bin/python3
 *   a hot door       nvhook/_hot/lib/python3.N in the package, if made for the interpreter's version:
 *                    start.pyc and <door>.modules; with encodings.pyc, nvhook/_hot is its home
 */
#define _GNU_SOURCE
#include "launcher.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char hot_code[] = "import sys\n"
			       "sys.path.append(sys.argv[1])\n"
			       "door = 'nvhook.' + sys.argv[2]\n"
			       "__import__(door)\n"
			       "sys.modules[door].main(sys.argv[2:])\n";
static const char cold_code[] = "import sys\n"
				"sys.path.append(sys.argv.pop(1))\n"
				"from nvhook.cli import run\n"
				"run()\n";

/* True for a regular file with something in it. */
static bool is_file(const char *directory, const char *name)
{
	char path[PATH_MAX];
	struct stat st;
	return path_of(path, sizeof path, "%s/%s", directory, name) && stat(path, &st) == 0 &&
	       S_ISREG(st.st_mode) && st.st_size > 0;
}

static bool find_interpreter(const char *prefix, char *python, size_t size)
{
	if (path_of(python, size, "%s/bin/python3", prefix) && access(python, X_OK) == 0)
		return true;
	static const char *const usual[] = { "/usr/bin/python3", "/usr/local/bin/python3" };
	for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
		if (path_of(python, size, "%s", usual[i]) && access(python, X_OK) == 0)
			return true;
	return false;
}

/* The directory to put on sys.path: the one that has nvhook/hook.py in it. */
static bool find_package(const char *prefix, const char *python, char *site, size_t size)
{
	if (is_file(prefix, "nvhook/hook.py"))
		return path_of(site, size, "%s", prefix);
	char lib[PATH_MAX];
	if (!path_of(lib, sizeof lib, "%s/lib", prefix))
		return false;
	DIR *dir = opendir(lib);
	if (!dir)
		return false;
	const char *version = strrchr(python, '/') + 1; /* python3.11 */
	bool found = false;
	static const char *const kinds[] = { "site-packages", "dist-packages" };
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
		if (strncmp(entry->d_name, "python3", 7) != 0)
			continue;
		for (size_t i = 0; i < 2; i++) {
			char candidate[PATH_MAX];
			if (!path_of(candidate, sizeof candidate, "%s/%s/%s", lib, entry->d_name, kinds[i]) ||
			    !is_file(candidate, "nvhook/hook.py"))
				continue;
			bool exact = strcmp(entry->d_name, version) == 0;
			if ((exact || !found) && path_of(site, size, "%s", candidate))
				found = true;
		}
	}
	closedir(dir);
	return found;
}

/* Where a hot door is packed for an interpreter (nvhook/hot_archive.py). */
struct hot {
	char start[PATH_MAX];	 /* the script that loads it; empty: not there */
	char home[2 * PATH_MAX]; /* what the interpreter starts with instead of its own library; or empty */
};

/*
 * True if a home's encodings were tried with this very interpreter: what one needs for its start may
 * change with each of its releases. The file has the time and size of the one it was tried with.
 */
static bool is_tried(const char *packed, const char *python)
{
	char path[PATH_MAX];
	unsigned char header[16];
	struct stat st;
	if (!path_of(path, sizeof path, "%s/encodings.pyc", packed) || stat(python, &st) < 0)
		return false;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	bool complete = read(fd, header, sizeof header) == (ssize_t)sizeof header;
	close(fd);
	uint32_t numbers[2] = { 0, 0 };
	for (int i = 0; complete && i < 8; i++)
		numbers[i / 4] |= (uint32_t)header[8 + i] << (i % 4 * 8);
	return complete && numbers[0] == (uint32_t)st.st_mtime && numbers[1] == (uint32_t)st.st_size;
}

static struct hot find_hot(const char *site, const char *python, const char *door)
{
	static const char *const libraries[] = { "lib", "lib64" };
	struct hot hot = { "", "" };
	char prefix[PATH_MAX], modules[NAME_MAX];
	const char *version = strrchr(python, '/') + 1; /* X/bin/python3.11 */
	static const char bin[] = "/bin/";
	size_t length = (size_t)(version - python);
	if (strncmp(version, "python3.", 8) != 0 || length < sizeof bin ||
	    strncmp(version - strlen(bin), bin, strlen(bin)) != 0)
		return hot;
	if (!path_of(prefix, sizeof prefix, "%.*s", (int)(length - strlen(bin)), python) ||
	    !path_of(modules, sizeof modules, "%s.modules", door))
		return hot;
	for (size_t i = 0; i < sizeof libraries / sizeof *libraries && !*hot.start; i++) {
		char own[PATH_MAX], packed[PATH_MAX];
		if (!path_of(packed, sizeof packed, "%s/nvhook/_hot/%s/%s", site, libraries[i], version) ||
		    !path_of(own, sizeof own, "%s/%s/%s", prefix, libraries[i], version) ||
		    !is_file(packed, modules) || !is_file(packed, "start.pyc") ||
		    !path_of(hot.start, sizeof hot.start, "%s/start.pyc", packed)) {
			*hot.start = '\0';
			continue;
		}
		/* The rest of its library must be where it looks for it then: below the prefix. */
		if (strchr(site, ':') || !is_tried(packed, python) || !is_file(own, "os.py") ||
		    !path_of(hot.home, sizeof hot.home, "PYTHONHOME=%s/nvhook/_hot:%s", site, prefix))
			*hot.home = '\0';
	}
	return hot;
}

/* The directory this executable is in: X/bin. */
static bool own_directory(char *path, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", path, size - 1);
	if (n <= 0)
		return false;
	path[n] = '\0';
	char *slash = strrchr(path, '/');
	if (!slash)
		return false;
	*slash = '\0';
	return true;
}

bool launcher_path(char *path, size_t size)
{
	char directory[PATH_MAX];
	return own_directory(directory, sizeof directory) && path_of(path, size, "%s/nvhook", directory);
}

int run_python(bool hot, int argc, char **argv)
{
	char self[PATH_MAX], python[PATH_MAX], real[PATH_MAX], site[PATH_MAX];
	char launcher[PATH_MAX];
	if (!own_directory(self, sizeof self) || !launcher_path(launcher, sizeof launcher))
		return fail("can't find its own executable", "is /proc mounted?");
	*strrchr(self, '/') = '\0'; /* X/bin -> X */
	if (!find_interpreter(self, python, sizeof python) || !realpath(python, real))
		return fail("no python3 found beside it or in /usr/bin", "install python3, or install nvhook again");
	if (!find_package(self, real, site, sizeof site))
		return fail("its Python package is missing", "install nvhook again");

	/* Hot: the base interpreter; a venv's own start-up and site cost milliseconds. */
	char **args = calloc((size_t)argc + 10, sizeof *args);
	if (!args)
		return fail("out of memory", "free some");
	int i = 0;
	/* For debugging, the modules themselves: tracebacks with their lines, and edits count. */
	char *debug = getenv("NVHOOK_DEBUG");
	struct hot packed = { "", "" };
	if (hot && !debug)
		packed = find_hot(site, real, argv[1]);
	args[i++] = hot ? real : python;
	/* Isolated; with a home it must look at the environment, which is only what is set below. */
	if (!*packed.home)
		args[i++] = "-I";
	/* X/nvhook has its dependencies beside it: the system's own must not come before them. */
	if (hot || strcmp(site, self) == 0)
		args[i++] = "-S";
	/* UTF-8 without a locale, whose files cost a tenth of a millisecond. */
	if (hot) {
		args[i++] = "-X";
		args[i++] = "utf8";
	}
	if (*packed.start) {
		args[i++] = packed.start;
	} else {
		args[i++] = "-c";
		args[i++] = (char *)(hot ? hot_code : cold_code);
	}
	args[i++] = site;
	for (int k = 1; k < argc; k++)
		args[i++] = argv[k];
	if (!hot) {
		setenv("NVHOOK_LAUNCHER", launcher, 1);
		execv(args[0], args);
		return fail("can't start python3", "install nvhook again");
	}
	char setting[64];
	snprintf(setting, sizeof setting, "NVHOOK_DEBUG=%.40s", debug ? debug : "");
	char *environment[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C",
				debug ? setting : *packed.home ? packed.home : NULL, NULL };
	execve(args[0], args, environment);
	return fail("can't start python3", "install nvhook again");
}
