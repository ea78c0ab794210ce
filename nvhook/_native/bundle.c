/*
 * Can a container be about a GPU at all? Answered from the state and config.json without believing
 * anything else in them: whatever is not understood here is left to Python, which has the one set of
 * error messages.
 */
#define _GNU_SOURCE
#include "launcher.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A container that wants a GPU has one of these in its config.json (core/request.py). */
static const char visible[] = "NVIDIA_VISIBLE_DEVICES";
static const char *const needles[] = {
	"CUDA_VERSION",
	"nvidia-container-devices",
	"DOCKER_RESOURCE",
	"cdi.k8s.io/",
};

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

bool find_bundle(const char *state, size_t length, char *bundle, size_t size)
{
	struct text t = { state, state + length };
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

bool may_want_gpu(const char *path)
{
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
