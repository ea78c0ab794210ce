/*
 * nvhook: what runtimes and people call. It starts Python only when there is something to do.
 *
 * As a hook it decides in about a millisecond whether the bundle's config.json can be about a GPU at
 * all; only then the interpreter starts, isolated (-I -S) and with a cleaned environment. Whatever
 * this program does not understand it leaves to Python, which has the one set of error messages.
 *
 * Where things are, relative to this executable X/bin/nvhook:
 *   the package      X/nvhook, or X/lib/python3.N/{site,dist}-packages/nvhook
 *   the interpreter  X/bin/python3, or /usr/bin/python3, /usr/local/bin/python3
 *   the hot path     nvhook/_hot/cpython-3N.pyc in the package, if made for the interpreter's version
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A state is a few KB; Python refuses what is longer than its limit of 1 MiB (formats/oci.py). */
#define STATE_LIMIT ((size_t)(1 << 20) + 1)

static const char compat_hook[] = "nvidia-container-runtime-hook";

static const char hot_code[] = "import sys\n"
			       "sys.path.append(sys.argv[1])\n"
			       "from nvhook.hook import main\n"
			       "main(sys.argv[2:])\n";
static const char cold_code[] = "import sys\n"
				"sys.path.append(sys.argv.pop(1))\n"
				"from nvhook.cli import run\n"
				"run()\n";

/* A container that wants a GPU has one of these in its config.json (core/request.py). */
static const char visible[] = "NVIDIA_VISIBLE_DEVICES";
static const char *const needles[] = {
	"CUDA_VERSION",
	"nvidia-container-devices",
	"DOCKER_RESOURCE",
};

static int fail(const char *what, const char *hint)
{
	fprintf(stderr, "nvhook: %s (hint: %s)\n", what, hint);
	return 1;
}

/* ---- the state: find "bundle" without believing anything else ---- */

struct text {
	const char *at, *end;
};

static void skip_space(struct text *t)
{
	while (t->at < t->end && memchr(" \t\r\n", *t->at, 4))
		t->at++;
}

/* Past a JSON string; its raw content between *from and *to. */
static bool skip_string(struct text *t, const char **from, const char **to)
{
	if (t->at >= t->end || *t->at != '"')
		return false;
	*from = ++t->at;
	for (; t->at < t->end; t->at++) {
		if (*t->at == '\\')
			t->at++;
		else if (*t->at == '"') {
			*to = t->at++;
			return true;
		}
	}
	return false;
}

/* Past any JSON value, to the comma or brace that ends it at this depth. */
static bool skip_value(struct text *t)
{
	int depth = 0;
	const char *from, *to;
	while (t->at < t->end) {
		char c = *t->at;
		if (c == '"') {
			if (!skip_string(t, &from, &to))
				return false;
			continue;
		}
		if (c == '{' || c == '[')
			depth++;
		else if (c == '}' || c == ']') {
			if (depth == 0)
				return true;
			depth--;
		} else if (c == ',' && depth == 0)
			return true;
		t->at++;
	}
	return false;
}

/* Undo the escapes a path can have: \/ and \\ and \". Anything else is for Python. */
static bool unescape(const char *from, const char *to, char *out, size_t size)
{
	size_t n = 0;
	for (; from < to; from++) {
		if (*from == '\\' && (++from == to || !memchr("/\\\"", *from, 3)))
			return false;
		if (*from == '\0' || n + 1 >= size)
			return false;
		out[n++] = *from;
	}
	out[n] = '\0';
	return n > 0;
}

static bool is_key(const char *from, const char *to, const char *key)
{
	size_t length = (size_t)(to - from);
	return length == strlen(key) && memcmp(from, key, length) == 0;
}

static bool find_bundle(struct text t, char *bundle, size_t size)
{
	skip_space(&t);
	if (t.at >= t.end || *t.at++ != '{')
		return false;
	bool found = false;
	for (;;) {
		const char *from, *to, *value, *value_end;
		skip_space(&t);
		if (!skip_string(&t, &from, &to))
			return false;
		skip_space(&t);
		if (t.at >= t.end || *t.at++ != ':')
			return false;
		skip_space(&t);
		if (is_key(from, to, "bundle") || is_key(from, to, "bundlePath")) {
			if (!skip_string(&t, &value, &value_end) || !unescape(value, value_end, bundle, size))
				return false;
			found = true;
		} else if (!skip_value(&t))
			return false;
		skip_space(&t);
		if (t.at >= t.end)
			return false;
		char c = *t.at++;
		if (c == '}')
			break;
		if (c != ',')
			return false;
	}
	skip_space(&t);
	return found && t.at == t.end;
}

/* ---- the bundle: can it be about a GPU? ---- */

/* \u00XX could spell a letter of a needle. No engine writes that, so only then Python must look. */
static bool has_escaped_ascii(const char *data, size_t size)
{
	const char *at = data, *end = data + size;
	while ((at = memmem(at, (size_t)(end - at), "\\u00", 4)) != NULL) {
		at += 4;
		if (end - at < 2)
			return false;
		char high = at[0], low = at[1];
		if (high == '4' || high == '5' || high == '6' || high == '7' ||
		    (high == '2' && (low == 'd' || low == 'D')))
			return true;
	}
	return false;
}

/* True if the variable stands there with a value other than nothing and void (what CDI sets). */
static bool asks_for_devices(const char *data, size_t size)
{
	const char *at = data, *end = data + size;
	while ((at = memmem(at, (size_t)(end - at), visible, sizeof visible - 1)) != NULL) {
		at += sizeof visible - 1;
		size_t left = (size_t)(end - at);
		if (!(left >= 2 && memcmp(at, "=\"", 2) == 0) && !(left >= 6 && memcmp(at, "=void\"", 6) == 0))
			return true;
	}
	return false;
}

/* True unless the bundle's config.json can be read and has nothing a GPU container has. */
static bool may_want_gpu(const char *bundle)
{
	char path[PATH_MAX + 16];
	snprintf(path, sizeof path, "%s/config.json", bundle);
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat st;
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0) {
		if (fd >= 0)
			close(fd);
		return true;
	}
	size_t size = (size_t)st.st_size;
	const char *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	close(fd);
	if (data == MAP_FAILED)
		return true;
	bool wanted = has_escaped_ascii(data, size) || asks_for_devices(data, size);
	for (size_t i = 0; i < sizeof needles / sizeof *needles && !wanted; i++)
		wanted = memmem(data, size, needles[i], strlen(needles[i])) != NULL;
	munmap((void *)data, size);
	return wanted;
}

/* ---- standard input: read once here, read again by Python ---- */

static char *read_all(int fd, size_t *size)
{
	size_t room = 1 << 16, have = 0;
	char *data = malloc(room);
	while (data && have < STATE_LIMIT) {
		if (have == room) {
			char *more = realloc(data, room *= 2);
			if (!more)
				break;
			data = more;
		}
		size_t want = room - have;
		if (want > STATE_LIMIT - have)
			want = STATE_LIMIT - have;
		ssize_t n = read(fd, data + have, want);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		have += (size_t)n;
	}
	*size = have;
	return data;
}

/* Put the data on standard input again. */
static bool replay(const char *data, size_t size)
{
	int fd = memfd_create("nvhook-state", 0);
	if (fd < 0)
		return false;
	for (size_t done = 0; done < size;) {
		ssize_t n = write(fd, data + done, size - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		done += (size_t)n;
	}
	if (lseek(fd, 0, SEEK_SET) != 0)
		return false;
	/* The runtime may have closed standard input: then the memory file is it already. */
	return fd == STDIN_FILENO || (dup2(fd, STDIN_FILENO) >= 0 && close(fd) == 0);
}

/* ---- Python ---- */

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

/* The hot path's modules in one file (nvhook/hot_archive.py), where there is one for python3.N. */
static bool find_archive(const char *site, const char *python, char *archive, size_t size)
{
	const char *version = strrchr(python, '/') + 1;
	if (strncmp(version, "python3.", 8) != 0)
		return false;
	int n = snprintf(archive, size, "%s/nvhook/_hot/cpython-3%s.pyc", site, version + 8);
	return n > 0 && (size_t)n < size && access(archive, R_OK) == 0;
}

static int run_python(bool hot, int argc, char **argv)
{
	char self[PATH_MAX], python[PATH_MAX], real[PATH_MAX], site[PATH_MAX], archive[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	if (n <= 0)
		return fail("can't find its own executable", "is /proc mounted?");
	self[n] = '\0';
	for (int i = 0; i < 2; i++) { /* X/bin/nvhook -> X */
		char *slash = strrchr(self, '/');
		if (slash)
			*slash = '\0';
	}
	if (!find_interpreter(self, python, sizeof python) || !realpath(python, real))
		return fail("no python3 found beside it or in /usr/bin", "install python3, or install nvhook again");
	if (!find_package(self, real, site, sizeof site))
		return fail("its Python package is missing", "install nvhook again");

	/* Hot: the base interpreter; a venv's own start-up and site cost milliseconds. */
	char **args = calloc((size_t)argc + 8, sizeof *args);
	if (!args)
		return fail("out of memory", "free some");
	int i = 0;
	args[i++] = hot ? real : python;
	args[i++] = "-I";
	/* X/nvhook has its dependencies beside it: the system's own must not come before them. */
	if (hot || strcmp(site, self) == 0)
		args[i++] = "-S";
	/* For debugging, the modules themselves: tracebacks with their lines, and edits count. */
	char *debug = getenv("NVHOOK_DEBUG");
	if (hot && !debug && find_archive(site, real, archive, sizeof archive)) {
		args[i++] = archive;
	} else {
		args[i++] = "-c";
		args[i++] = (char *)(hot ? hot_code : cold_code);
	}
	args[i++] = site;
	for (int k = 1; k < argc; k++)
		args[i++] = argv[k];
	if (!hot) {
		execv(args[0], args);
		return fail("can't start python3", "install nvhook again");
	}
	char setting[64];
	snprintf(setting, sizeof setting, "NVHOOK_DEBUG=%.40s", debug ? debug : "");
	char *environment[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", debug ? setting : NULL,
				NULL };
	execve(args[0], args, environment);
	return fail("can't start python3", "install nvhook again");
}

static int hook(int argc, char **argv)
{
	if (isatty(STDIN_FILENO))
		return fail("the container's state is expected on standard input", "container runtimes call this hook");
	size_t size;
	char *state = read_all(STDIN_FILENO, &size);
	char bundle[PATH_MAX];
	if (state && find_bundle((struct text){ state, state + size }, bundle, sizeof bundle) &&
	    !may_want_gpu(bundle))
		return 0;
	if (!state || !replay(state, size))
		return fail("can't keep the container's state", "is there memory left?");
	return run_python(true, argc, argv);
}

int main(int argc, char **argv)
{
	const char *slash = argc ? strrchr(argv[0], '/') : NULL;
	const char *name = slash ? slash + 1 : argc ? argv[0] : "nvhook";

	if (strcmp(name, compat_hook) == 0) {
		/* NVIDIA's command line: [-debug] [-config FILE] prestart; the other stages do nothing. */
		const char *stage = argc > 1 ? argv[argc - 1] : "";
		if (strcmp(stage, "poststart") == 0 || strcmp(stage, "poststop") == 0)
			return 0;
		if (argc == 2 && (strcmp(stage, "-version") == 0 || strcmp(stage, "--version") == 0)) {
			printf("%s: nvhook %s\n", compat_hook, NVHOOK_VERSION);
			return 0;
		}
		char **args = calloc((size_t)argc + 2, sizeof *args);
		if (!args)
			return fail("out of memory", "free some");
		args[0] = argv[0];
		args[1] = "hook";
		for (int i = 1; i < argc; i++)
			args[i + 1] = argv[i];
		return hook(argc + 1, args);
	}
	if (argc > 1 && strcmp(argv[1], "hook") == 0) {
		bool help = argc < 3;
		for (int i = 2; i < argc; i++)
			help |= strcmp(argv[i], "--help") == 0;
		if (!help)
			return hook(argc, argv);
	}
	return run_python(false, argc, argv);
}
