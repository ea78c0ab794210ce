/*
 * A walk over a JSON text. It builds and allocates nothing; every function moves on past what it
 * is called for. What is not JSON as formats/json_text.py reads it (RFC 8259 and UTF-8) sets bad,
 * and then nothing moves any more. Duplicate keys are the caller's to find.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct json {
	const char *at, *end; /* the text, from what comes next */
	bool bad;
	int depth;
};

/* A part of the text: a value as it stands there, or a string without its quotes, escapes kept. */
struct span {
	const char *from, *to;
};

/* True if the whole text was a value, and the walk is past it. */
bool json_done(struct json *json);
/* The character that comes next, after blanks. */
char json_peek(struct json *json);
/*
 * for (bool more = json_enter(j, '{'); more; more = json_more(j, '}')) { a key and a value }
 * or with [ and ], and a value.
 */
bool json_enter(struct json *json, char open);
bool json_more(struct json *json, char close);
/* Past a key and its colon. */
struct span json_key(struct json *json);
struct span json_string(struct json *json);
/* Past any value, checked to the last character. */
struct span json_skip(struct json *json);

/* What a string has after a beginning, NULL if it begins otherwise. Escapes are undone first. */
const char *json_after(struct span string, const char *beginning);
bool json_is(struct span string, const char *whole);
bool json_has(struct span string, const char *part);
bool json_has_escape(struct span string);
/* Copy a string whose only escapes are \/ and \\ and \"; false for others, and if it is too long. */
bool json_copy(struct span string, char *out, size_t size);
