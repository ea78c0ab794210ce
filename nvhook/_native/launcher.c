/*
 * nvhook: what runtimes, engines and people call. It starts Python only when there is something to do.
 *
 * As a hook or a runtime it decides in about a millisecond whether the bundle's config.json can be
 * about a GPU at all; only then the interpreter starts, isolated and with a cleaned
 * environment. The name it is called by decides what it is:
 *   nvhook                         the hook (nvhook hook STAGE), and the command line
 *   nvhook-runtime                 an OCI runtime in front of the real one (runtime.c)
 *   nvidia-container-runtime-hook  the hook, with NVIDIA's command line
 *   nvidia-container-runtime       nvhook-runtime
 *   nvidia-container-cli           what ctr run --gpus calls (nvhook.doors)
 */
#define _GNU_SOURCE
#include "launcher.h"
#include "repeat.h"
#include "request.h"
#include "syscalls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A state is a few KB; Python says what is wrong with one of more than 1 MiB (formats/oci.py). */
#define STATE_LIMIT ((size_t)64 << 20)

static const char compat_hook[] = "nvidia-container-runtime-hook";

int fail(const char *what, const char *hint)
{
	/* In one piece: others write to the same place. */
	char line[PATH_MAX + 512];
	int n = snprintf(line, sizeof line, "nvhook: %s (hint: %s)\n", what, hint);
	size_t length = n < 0 ? 0 : (size_t)n < sizeof line ? (size_t)n : sizeof line - 1;
	ssize_t told = write(STDERR_FILENO, line, length);
	(void)told;
	return 1;
}

bool path_of(char *out, size_t size, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int n = vsnprintf(out, size, format, arguments);
	va_end(arguments);
	return n > 0 && (size_t)n < size;
}

const char *map_config(const char *path, size_t *size)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat st;
	const char *text = MAP_FAILED;
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
		*size = (size_t)st.st_size;
		text = mmap(NULL, *size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	}
	if (fd >= 0)
		close(fd);
	return text == MAP_FAILED ? NULL : text;
}

/* ---- standard input: read once here, read again by Python ---- */

/* Put the data on standard input again. */
static bool replay(const char *data, size_t size)
{
	int fd = memfd_create("nvhook-state", 0);
	if (fd < 0)
		return false;
	if (write_all(fd, data, size) < 0 || lseek(fd, 0, SEEK_SET) != 0)
		return false;
	/* The runtime may have closed standard input: then the memory file is it already. */
	return fd == STDIN_FILENO || (dup2(fd, STDIN_FILENO) >= 0 && close(fd) == 0);
}

static int hook(int argc, char **argv)
{
	if (isatty(STDIN_FILENO))
		return fail("the container's state is expected on standard input", "container runtimes call this hook");
	/* nvhook-runtime or a CDI spec put the hook there: no need to look whether it has something to do. */
	bool cdi = false, delegated = false;
	for (int i = 2; i < argc; i++) {
		cdi |= strncmp(argv[i], "--cdi", 5) == 0;
		delegated |= strcmp(argv[i], "--delegated") == 0;
	}
	size_t size, config_size;
	char *text = read_descriptor(STDIN_FILENO, STATE_LIMIT, &size), config[PATH_MAX + 16];
	struct state state = { 0 };
	bool known = text && read_state(text, size, &state);
	if (*state.bundle) {
		snprintf(config, sizeof config, "%s/config.json", state.bundle);
		const char *config_json = map_config(config, &config_size);
		struct request request = { .wanted = true };
		if (config_json)
			request = read_request(config_json, config_size);
		if (!request.wanted && !cdi && !delegated)
			return 0;
		int status = known ? repeat_hook(&state, &request, argc, argv) : -1;
		if (status >= 0)
			return status;
	}
	if (!text && errno == EFBIG)
		return fail("the container's state is too large", "container runtimes write a few KB");
	if (!replay(text, text ? size : 0))
		return fail("can't keep the container's state", "is there memory left?");
	return run_python(true, argc, argv);
}

/* The arguments, with others in the place of argv[0]. */
static char **with_front(int count, char **first, int argc, char **argv)
{
	char **args = calloc((size_t)(count + argc), sizeof *args);
	if (!args)
		exit(fail("out of memory", "free some"));
	memcpy(args, first, (size_t)count * sizeof *args);
	if (argc > 1)
		memcpy(args + count, argv + 1, (size_t)(argc - 1) * sizeof *args);
	return args;
}

int main(int argc, char **argv)
{
	const char *slash = argc ? strrchr(argv[0], '/') : NULL;
	const char *name = slash ? slash + 1 : argc ? argv[0] : "nvhook";

	if (strcmp(name, "nvidia-container-cli") == 0) {
		const char *config = getenv("NVHOOK_CONFIG");
		char *first[] = { argv[0], "nvidia_container_cli", (char *)(config ? config : "") };
		return run_python(true, argc + 2, with_front(3, first, argc, argv));
	}
	if (strcmp(name, "nvhook-runtime") == 0 || strcmp(name, "nvidia-container-runtime") == 0)
		return runtime(argc, argv);
	if (strcmp(name, compat_hook) == 0) {
		/* NVIDIA's command line: [-debug] [-config FILE] prestart; the other stages do nothing. */
		const char *stage = argc > 1 ? argv[argc - 1] : "";
		if (strcmp(stage, "poststart") == 0 || strcmp(stage, "poststop") == 0)
			return 0;
		if (argc == 2 && (strcmp(stage, "-version") == 0 || strcmp(stage, "--version") == 0)) {
			printf("%s: nvhook %s\n", compat_hook, NVHOOK_VERSION);
			return 0;
		}
		char *first[] = { argv[0], "hook" };
		return hook(argc + 1, with_front(2, first, argc, argv));
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
