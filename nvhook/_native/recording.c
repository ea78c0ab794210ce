/* A recording's lines: read without believing that they are what Python wrote. */
#define _GNU_SOURCE
#include "repeat.h"
#include "blake2b.h"
#include "syscalls.h"

#include <string.h>

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

void hex_digest(const void *data, size_t size, char out[65])
{
	struct blake2b hash;
	blake2b_start(&hash);
	blake2b_add(&hash, data, size);
	blake2b_hex(&hash, out);
}

int nvh_recording_key(const void *words, size_t size, const uint8_t request[32], char key[65])
{
	struct blake2b hash;
	blake2b_start(&hash);
	blake2b_add(&hash, words, size);
	blake2b_add(&hash, request, 32);
	blake2b_hex(&hash, key);
	return 0;
}

char *read_made(int directory, size_t count, const char *const parts[], size_t *size)
{
	struct blake2b hash;
	char name[5 + 65] = "made-";
	blake2b_start(&hash);
	for (size_t i = 0; i < count; i++) {
		blake2b_add(&hash, "", i ? 1 : 0);
		blake2b_add(&hash, parts[i], strlen(parts[i]));
	}
	blake2b_hex(&hash, name + 5);
	return read_file(directory, name, MADE_LIMIT, size);
}
