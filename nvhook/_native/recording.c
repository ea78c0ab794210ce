/* A recording's lines: read without believing that they are what Python wrote. */
#define _GNU_SOURCE
#include "repeat.h"
#include "blake2b.h"
#include "syscalls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MADE_LIMIT ((size_t)16 << 20)

bool number(const char *text, uint64_t *out)
{
	uint64_t value = 0;
	size_t length = strspn(text, "0123456789");
	if (!length || text[length] || length > 20)
		return false;
	for (; *text; text++)
		if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *text - '0', &value))
			return false;
	*out = value;
	return true;
}

bool is_kind(const struct line *line, const char *kind) { return strcmp(line->field[0], kind) == 0; }

bool read_line(struct recording *recording, struct line *line)
{
	*line = (struct line){ .count = 0 };
	char *at = recording->at, *end = memchr(at, '\n', (size_t)(recording->end - at));
	if (!end || memchr(at, '\0', (size_t)(end - at)))
		return false;
	*end = '\0';
	for (char *tab; line->count < FIELDS; at = tab + 1) {
		line->field[line->count++] = at;
		tab = strchr(at, '\t');
		if (!tab) {
			recording->at = end + 1;
			uint64_t size;
			if (!is_kind(line, "file") && !is_kind(line, "splice"))
				return true;
			if (!number(line->field[line->count - 1], &size) || size >= (size_t)(recording->end - end - 1) ||
			    end[1 + size] != '\n')
				return false;
			line->data = end + 1;
			line->size = size;
			recording->at = end + size + 2;
			return true;
		}
		*tab = '\0';
	}
	return false;
}

char *read_descriptor(int fd, size_t limit, size_t *size)
{
	struct stat st;
	size_t room = fstat(fd, &st) == 0 && st.st_size > 0 && (size_t)st.st_size < limit ? (size_t)st.st_size + 1 : 1 << 16;
	size_t have = 0;
	char *data = malloc(room + 1);
	while (data) {
		ssize_t n = read(fd, data + have, room - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			if (n < 0)
				break;
			data[have] = '\0';
			*size = have;
			return data;
		}
		have += (size_t)n;
		if (have > limit)
			break;
		if (have == room) {
			char *more = realloc(data, (room *= 2) + 1);
			if (!more)
				break;
			data = more;
		}
	}
	free(data);
	return NULL;
}

char *read_file(int at, const char *path, size_t limit, size_t *size)
{
	int fd = openat(at, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	char *data = fd < 0 ? NULL : read_descriptor(fd, limit, size);
	if (fd >= 0)
		close(fd);
	return data;
}

static void to_hex(const uint8_t digest[32], char out[65])
{
	for (int i = 0; i < 32; i++)
		snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

void hex_digest(const void *data, size_t size, char out[65])
{
	struct blake2b hash;
	uint8_t digest[32];
	blake2b_start(&hash);
	blake2b_add(&hash, data, size);
	blake2b_end(&hash, digest);
	to_hex(digest, out);
}

int nvh_recording_key(const void *words, size_t size, const uint8_t request[32], char key[65])
{
	struct blake2b hash;
	uint8_t digest[32];
	blake2b_start(&hash);
	blake2b_add(&hash, words, size);
	blake2b_add(&hash, request, 32);
	blake2b_end(&hash, digest);
	to_hex(digest, key);
	return 0;
}

char *read_made(int directory, size_t count, const char *const parts[], size_t *size)
{
	struct blake2b hash;
	uint8_t digest[32];
	char name[5 + 65] = "made-";
	blake2b_start(&hash);
	for (size_t i = 0; i < count; i++) {
		blake2b_add(&hash, "", i ? 1 : 0);
		blake2b_add(&hash, parts[i], strlen(parts[i]));
	}
	blake2b_end(&hash, digest);
	to_hex(digest, name + 5);
	int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	char *data = fd < 0 ? NULL : read_descriptor(fd, MADE_LIMIT, size);
	if (fd >= 0)
		close(fd);
	return data;
}
