/*
 * Starting Python: where things are, relative to this executable X/bin/nvhook:
 *   the package      X/nvhook, or X/lib/python3.N/{site,dist}-packages/nvhook
 *   the interpreter  X/bin/python3, or /usr/bin/python3, /usr/local/bin/python3
 *   a hot door       nvhook/_hot in the package, if made for the interpreter's version: start-3N.pyc
 *                    and <door>-3N.modules
 */
#define _GNU_SOURCE
#include "launcher.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static bool join(char *out, size_t size, const char *a, const char *b)
{
	int n = snprintf(out, size, "%s%s", a, b);
	return n > 0 && (size_t)n < size;
}

static bool exists(const char *a, const char *b)
{
	char path[PATH_MAX];
	return join(path, sizeof path, a, b) && access(path, R_OK) == 0;
}

static bool find_interpreter(const char *prefix, char *python, size_t size)
{
	if (join(python, size, prefix, "/bin/python3") && access(python, X_OK) == 0)
		return true;
	static const char *const usual[] = { "/usr/bin/python3", "/usr/local/bin/python3" };
	for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
		if (join(python, size, usual[i], "") && access(python, X_OK) == 0)
			return true;
	return false;
}

/* The directory to put on sys.path: the one that has nvhook/hook.py in it. */
static bool find_package(const char *prefix, const char *python, char *site, size_t size)
{
	if (exists(prefix, "/nvhook/hook.py"))
		return join(site, size, prefix, "");
	char lib[PATH_MAX];
	if (!join(lib, sizeof lib, prefix, "/lib"))
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
			int n = snprintf(candidate, sizeof candidate, "%s/%s/%s", lib, entry->d_name, kinds[i]);
			if (n < 0 || (size_t)n >= sizeof candidate || !exists(candidate, "/nvhook/hook.py"))
				continue;
			bool exact = strcmp(entry->d_name, version) == 0;
			if ((exact || !found) && join(site, size, candidate, ""))
				found = true;
		}
	}
	closedir(dir);
	return found;
}

/* The start of the hot doors (nvhook/hot_archive.py), where this door's modules are there for python3.N. */
static bool find_start(const char *site, const char *python, const char *door, char *start, size_t size)
{
	const char *version = strrchr(python, '/') + 1;
	if (strncmp(version, "python3.", 8) != 0)
		return false;
	int n = snprintf(start, size, "%s/nvhook/_hot/%s-3%s.modules", site, door, version + 8);
	if (n < 0 || (size_t)n >= size || access(start, R_OK) < 0)
		return false;
	n = snprintf(start, size, "%s/nvhook/_hot/start-3%s.pyc", site, version + 8);
	return n > 0 && (size_t)n < size && access(start, R_OK) == 0;
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
	return own_directory(directory, sizeof directory) && join(path, size, directory, "/nvhook");
}

int run_python(bool hot, int argc, char **argv)
{
	char self[PATH_MAX], python[PATH_MAX], real[PATH_MAX], site[PATH_MAX], start[PATH_MAX];
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
	args[i++] = hot ? real : python;
	args[i++] = "-I";
	/* X/nvhook has its dependencies beside it: the system's own must not come before them. */
	if (hot || strcmp(site, self) == 0)
		args[i++] = "-S";
	/* UTF-8 without a locale, whose files cost a tenth of a millisecond. */
	if (hot) {
		args[i++] = "-X";
		args[i++] = "utf8";
	}
	/* For debugging, the modules themselves: tracebacks with their lines, and edits count. */
	char *debug = getenv("NVHOOK_DEBUG");
	if (hot && !debug && find_start(site, real, argv[1], start, sizeof start)) {
		args[i++] = start;
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
	char *environment[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", debug ? setting : NULL,
				NULL };
	execve(args[0], args, environment);
	return fail("can't start python3", "install nvhook again");
}
