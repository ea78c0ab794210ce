/*
 * nvhook-runtime: an OCI runtime in front of runc or crun.
 *
 * Every call becomes the real runtime by execve: same arguments, environment, descriptors, signals and
 * status. Only before the creation of a container that may want a GPU, Python edits its config.json in
 * a child, which is waited for; the process itself stays what the engine started.
 */
#define _GNU_SOURCE
#include "launcher.h"
#include "repeat.h"
#include "request.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOT_FOUND 127
#define CONFIG_LIMIT (1 << 20)

static const char default_config[] = "/etc/nvhook/config.toml";
static const char *const default_runtimes[] = { "runc", "crun", NULL };
/* Where runtimes are, whatever PATH the engine has. */
static const char default_path[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/* ---- the call ---- */

struct call {
	const char *verb, *bundle, *config, *log, *log_format;
	bool version;
};

/* Options of runc and crun whose value may be the next argument. */
static const char *const with_value[] = {
	"root", "log", "log-format", "log-level", "criu", "rootless", "cgroup-manager", /* before the verb */
	"bundle", "b", "config", "f", "console-socket", "pid-file", "pidfd-socket", "preserve-fds",
};

static void note(struct call *call, const char *name, size_t length, const char *value)
{
	const struct {
		const char *name;
		const char **place;
	} places[] = {
		{ "bundle", &call->bundle }, { "b", &call->bundle }, { "config", &call->config },
		{ "f", &call->config },	     { "log", &call->log },  { "log-format", &call->log_format },
	};
	for (size_t i = 0; i < sizeof places / sizeof *places; i++)
		if (strlen(places[i].name) == length && strncmp(places[i].name, name, length) == 0)
			*places[i].place = value; /* the last one counts */
}

static bool takes_value(const char *name)
{
	for (size_t i = 0; i < sizeof with_value / sizeof *with_value; i++)
		if (strcmp(with_value[i], name) == 0)
			return true;
	return false;
}

static struct call parse(int argc, char **argv)
{
	struct call call = { .bundle = "." };
	for (int i = 1; i < argc; i++) {
		const char *name = argv[i];
		if (strcmp(name, "--") == 0)
			break;
		if (name[0] != '-' || !name[1]) {
			if (!call.verb)
				call.verb = name;
			continue;
		}
		bool is_short = *++name != '-';
		name += !is_short;
		const char *equals = strchr(name, '=');
		if (equals)
			note(&call, name, (size_t)(equals - name), equals + 1);
		else if (takes_value(name) && i + 1 < argc)
			note(&call, name, strlen(name), argv[++i]);
		else if (is_short && (*name == 'b' || *name == 'f') && name[1])
			note(&call, name, 1, name + 1); /* crun's -bDIR */
		else if (!call.verb && (strcmp(name, "version") == 0 || strcmp(name, "v") == 0))
			call.version = true;
	}
	return call;
}

/* ---- the real runtime ---- */

static bool is_runnable(const char *path)
{
	struct stat self, other;
	if (stat(path, &other) < 0 || !S_ISREG(other.st_mode) || access(path, X_OK) < 0)
		return false;
	/* Installed under the real one's name, it must not call itself for ever. */
	return stat("/proc/self/exe", &self) < 0 || self.st_dev != other.st_dev || self.st_ino != other.st_ino;
}

static bool find_in(const char *path, const char *name, size_t length, char *out, size_t size)
{
	for (; path && *path; path += *path == ':') {
		size_t part = strcspn(path, ":");
		if (part && *path == '/' &&
		    path_of(out, size, "%.*s/%.*s", (int)part, path, (int)length, name) && is_runnable(out))
			return true;
		path += part;
	}
	return false;
}

static bool find_runtime(const char *name, size_t length, char *out, size_t size)
{
	if (memchr(name, '/', length))
		return *name == '/' && path_of(out, size, "%.*s", (int)length, name) && is_runnable(out);
	return find_in(getenv("PATH"), name, length, out, size) || find_in(default_path, name, length, out, size);
}

static const char *blank(const char *at)
{
	return at + strspn(at, " \t");
}

/*
 * handler.runtimes of the configuration, a list of strings on one line: the first that is found.
 * 1: found. 0: the file does not say. -1: none of the list exists. -2: not understood.
 */
static int configured_runtime(const char *line, char *out, size_t size)
{
	static const char key[] = "runtimes";
	bool in_table = false;
	for (const char *next; *line; line = next) {
		next = line + strcspn(line, "\n");
		next += *next != '\0';
		const char *at = blank(line);
		if (*at == '[') {
			at = blank(at + 1);
			in_table = strncmp(at, "handler", 7) == 0 && *blank(at + 7) == ']';
			continue;
		}
		const char *word = memmem(line, (size_t)(next - line), key, sizeof key - 1);
		const char *comment = memchr(line, '#', (size_t)(next - line));
		const char *equals = memchr(line, '=', (size_t)(next - line));
		if (!word || (comment && comment < word))
			continue;
		/* In another setting's value, such as a path; handler = {...} is this one. */
		if (!equals || (equals < word && strncmp(at + (*at == '"' || *at == '\''), "handler", 7) != 0))
			continue;
		if (!in_table && strncmp(at, "handler.", 8) == 0)
			at += 8;
		else if (!in_table)
			return -2;
		if (strncmp(at, key, sizeof key - 1) != 0)
			return -2;
		at = blank(at + sizeof key - 1);
		if (*at != '=' || *(at = blank(at + 1)) != '[')
			return -2;
		int found = -1;
		for (at = blank(at + 1); *at == '"' || *at == '\''; at = blank(at)) {
			char quote = *at++;
			size_t length = strcspn(at, quote == '"' ? "\"\\\n" : "'\n");
			if (at[length] != quote)
				return -2;
			if (found < 0 && find_runtime(at, length, out, size))
				found = 1;
			at = blank(at + length + 1);
			if (*at == ',')
				at++;
		}
		return *at == ']' ? found : -2;
	}
	return 0;
}

/* The configuration's text; NULL where there is none. */
static char *read_config(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return NULL;
	char *text = calloc(1, CONFIG_LIMIT + 1);
	size_t have = 0;
	for (ssize_t n; text && (n = read(fd, text + have, CONFIG_LIMIT - have)) > 0;)
		have += (size_t)n;
	close(fd);
	return text;
}

/* Find the runtime to become; false with a line on standard error. */
static bool choose(const char *config, char *out, size_t size)
{
	const char *wanted = getenv("NVHOOK_RUNTIME");
	if (wanted && *wanted) {
		if (find_runtime(wanted, strlen(wanted), out, size))
			return true;
		fail("the runtime in NVHOOK_RUNTIME is not found", "give a name on PATH or an absolute path");
		return false;
	}
	char *text = read_config(config);
	int found = text ? configured_runtime(text, out, size) : 0;
	free(text);
	if (found == -2)
		fail("handler.runtimes in the configuration is not understood",
		     "write it on one line: handler.runtimes = [\"runc\", \"crun\"]");
	else if (found == -1)
		fail("none of handler.runtimes in the configuration is found", "name one that is installed");
	if (found)
		return found > 0;
	for (const char *const *name = default_runtimes; *name; name++)
		if (find_runtime(*name, strlen(*name), out, size))
			return true;
	fail("no OCI runtime is found", "install runc or crun, or set handler.runtimes");
	return false;
}

/* ---- a GPU container's bundle ---- */

/* Run Python in a child; its status, or -1. */
static int edit(char **argv, int argc)
{
	/* An engine may ignore SIGCHLD, then a child's status is lost; the runtime gets it as it was. */
	struct sigaction before, plain = { .sa_handler = SIG_DFL };
	sigaction(SIGCHLD, &plain, &before);
	pid_t parent = getpid(), child = fork();
	if (child == 0) {
		int nothing = open("/dev/null", O_RDWR);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0 ||
		    getppid() != parent)
			_exit(1);
		_exit(run_python(true, argc, argv));
	}
	int status = -1;
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	sigaction(SIGCHLD, &before, NULL);
	return status;
}

/* The working directory is asked for only when it counts: it may have been removed or be out of reach. */
static bool absolute(const char *path, char *out, size_t size)
{
	char here[PATH_MAX];
	if (*path == '/')
		return path_of(out, size, "%s", path);
	return getcwd(here, sizeof here) && path_of(out, size, "%s/%s", here, path);
}

/* Give the container of a create or run what it asks for; the exit status. */
static int prepare(const struct call *call, const char *config)
{
	static const char usual[] = "config.json";
	char usual_place[PATH_MAX], bundle[PATH_MAX], document[PATH_MAX], launcher[PATH_MAX], settings[PATH_MAX];
	const char *given = *call->bundle ? call->bundle : "."; /* as to the runtimes */
	/* crun looks for another file where it was called. */
	bool elsewhere = call->config && strcmp(call->config, usual) != 0;
	const char *place = elsewhere ? call->config : usual_place;
	static const char hint[] = "give both as absolute paths of less than 4096 bytes";
	if (!elsewhere && !path_of(usual_place, sizeof usual_place, "%s/%s", given, usual))
		return fail("the bundle's path is too long", hint);
	if (access(place, F_OK) < 0)
		return 0; /* what is missing, the real runtime says best */
	size_t size;
	const char *text = map_config(place, &size);
	struct request request = { .wanted = true };
	if (text)
		request = read_request(text, size);
	if (!request.wanted)
		return 0;
	*settings = '\0';
	if (!absolute(given, bundle, sizeof bundle) || !absolute(place, document, sizeof document) ||
	    (*config && !absolute(config, settings, sizeof settings))) /* the hook runs in the bundle */
		return fail("the bundle's or the configuration's path can't be made absolute", hint);
	if (!launcher_path(launcher, sizeof launcher))
		return fail("can't find its own executable", "is /proc mounted?");
	if (repeat_edit(document, bundle, launcher, settings, text, size, &request) == 0)
		return 0;
	char *argv[] = { "nvhook", "runtime", bundle, document, launcher, settings,
			 (char *)(call->log ? call->log : ""), (char *)(call->log_format ? call->log_format : ""),
			 NULL };
	int status = edit(argv, sizeof argv / sizeof *argv - 1);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (!WIFEXITED(status))
		fail("was killed while it edited the bundle", "try again");
	return 1;
}

int runtime(int argc, char **argv)
{
	const char *chosen = getenv("NVHOOK_CONFIG");
	chosen = chosen && *chosen ? chosen : NULL;
	char real[PATH_MAX];
	if (!choose(chosen ? chosen : default_config, real, sizeof real))
		return NOT_FOUND;
	struct call call = parse(argc, argv);
	if (call.version) {
		printf("nvhook-runtime version %s\n", NVHOOK_VERSION);
		fflush(stdout);
	}
	if (call.verb && (strcmp(call.verb, "create") == 0 || strcmp(call.verb, "run") == 0)) {
		int status = prepare(&call, chosen ? chosen : "");
		if (status)
			return status;
	}
	argv[0] = real;
	execv(real, argv);
	char what[PATH_MAX + 128];
	snprintf(what, sizeof what, "can't start %s: %s", real, strerror(errno));
	fail(what, "is it an OCI runtime for this machine?");
	return NOT_FOUND;
}
