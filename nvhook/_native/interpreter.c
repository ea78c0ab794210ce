/*
 * Starting Python: where things are, relative to this executable X/bin/nvhook:
 *   the package      X/nvhook, or X/lib/python3.N/{site,dist}-packages/nvhook
 *   the interpreter  X/bin/python3, or /usr/bin/python3, /usr/local/bin/python3
 */
#define _GNU_SOURCE
#include "launcher.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* argv: the package's directory, a module of nvhook.doors, its arguments. */
static const char door_code[] = "import sys\n"
				"sys.path.append(sys.argv[1])\n"
				"door = 'nvhook.doors.' + sys.argv[2]\n"
				"__import__(door)\n"
				"sys.modules[door].main(sys.argv[2:])\n";
static const char command_code[] = "import sys\n"
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

/* The directory to put on sys.path: the one that has nvhook/doors/hook.py in it. */
static bool find_package(const char *prefix, const char *python, char *site, size_t size)
{
	if (is_file(prefix, "nvhook/doors/hook.py"))
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
			    !is_file(candidate, "nvhook/doors/hook.py"))
				continue;
			bool exact = strcmp(entry->d_name, version) == 0;
			if ((exact || !found) && path_of(site, size, "%s", candidate))
				found = true;
		}
	}
	closedir(dir);
	return found;
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

int run_python(bool door, int argc, char **argv)
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

	char **args = calloc((size_t)argc + 6, sizeof *args);
	if (!args)
		return fail("out of memory", "free some");
	int i = 0;
	/* A door gets the base interpreter: a virtual environment's own start and site cost milliseconds. */
	args[i++] = door ? real : python;
	args[i++] = "-I";
	/* X/nvhook has its dependencies beside it: the system's own must not come before them. */
	if (door || strcmp(site, self) == 0)
		args[i++] = "-S";
	args[i++] = "-c";
	args[i++] = (char *)(door ? door_code : command_code);
	args[i++] = site;
	for (int k = 1; k < argc; k++)
		args[i++] = argv[k];
	if (!door) {
		setenv("NVHOOK_LAUNCHER", launcher, 1);
		execv(args[0], args);
		return fail("can't start python3", "install nvhook again");
	}
	char setting[64];
	const char *debug = getenv("NVHOOK_DEBUG");
	snprintf(setting, sizeof setting, "NVHOOK_DEBUG=%.40s", debug ? debug : "");
	char *environment[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", debug ? setting : NULL, NULL };
	execve(args[0], args, environment);
	return fail("can't start python3", "install nvhook again");
}
