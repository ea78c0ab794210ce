#define _GNU_SOURCE
#include "json.h"

#include <string.h>

/* Python's own reader gives up some hundreds of levels deep; no engine writes more than eight. */
#define MAX_DEPTH 64

static char fail(struct json *json)
{
	json->bad = true;
	return '\0';
}

/* Past one character of a set, if one is there. */
static bool pass(struct json *json, const char *set)
{
	bool there = !json->bad && json->at < json->end && memchr(set, *json->at, strlen(set));
	json->at += there;
	return there;
}

char json_peek(struct json *json)
{
	const char *at = json->at;
	while (!json->bad && at < json->end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r'))
		at++;
	json->at = at;
	return json->bad || at == json->end ? fail(json) : *at;
}

bool json_done(struct json *json)
{
	bool was_bad = json->bad;
	json_peek(json);
	json->bad = was_bad || json->at != json->end;
	return !json->bad;
}

static bool take(struct json *json, char c)
{
	if (json_peek(json) != c)
		return fail(json);
	json->at++;
	return true;
}

bool json_enter(struct json *json, char open)
{
	if (!take(json, open) || ++json->depth > MAX_DEPTH)
		return fail(json);
	if (json_peek(json) != open + 2) /* ASCII: [\] and {|} */
		return !json->bad;
	json->at++;
	json->depth--;
	return false;
}

bool json_more(struct json *json, char close)
{
	if (json_peek(json) == ',')
		return take(json, ',');
	json->depth--;
	take(json, close);
	return false;
}

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* The length of a string's next character, 0 if it can't stand there. Source: Unicode 15, table 3-7. */
static size_t character(const char *text, size_t left)
{
	const unsigned char *at = (const unsigned char *)text, c = *at;
	if (c == '\\') {
		size_t length = left > 1 && memchr("\"\\/bfnrt", at[1], 8) ? 2 : left > 5 && at[1] == 'u' ? 6 : 0;
		for (size_t i = 2; i < length; i++)
			if (hex(text[i]) < 0)
				return 0;
		return length;
	}
	if (c < 0x80)
		return c >= 0x20;
	size_t length = c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
	for (size_t i = 1; i < length; i++)
		if (i >= left || (at[i] & 0xc0) != 0x80)
			return 0;
	bool too_long = (c == 0xe0 && at[1] < 0xa0) || (c == 0xf0 && at[1] < 0x90);
	bool too_large = (c == 0xed && at[1] > 0x9f) || (c == 0xf4 && at[1] > 0x8f);
	return too_long || too_large ? 0 : length;
}

struct span json_string(struct json *json)
{
	take(json, '"');
	struct span span = { json->at, json->at };
	const char *at = json->at, *end = json->bad ? at : json->end;
	while (at < end && *at != '"') {
		bool is_plain = *at >= ' ' && *at < 0x7f && *at != '\\';
		size_t length = is_plain ? 1 : character(at, (size_t)(end - at));
		at += length;
		if (!length)
			json->bad = true, end = at;
	}
	span.to = json->at = at;
	take(json, '"');
	return span;
}

struct span json_key(struct json *json)
{
	struct span key = json_string(json);
	take(json, ':');
	return key;
}

static void skip_digits(struct json *json)
{
	json->bad |= !pass(json, "0123456789");
	while (pass(json, "0123456789"))
		;
}

static void skip_number(struct json *json)
{
	pass(json, "-");
	if (!pass(json, "0"))
		skip_digits(json);
	if (pass(json, "."))
		skip_digits(json);
	if (pass(json, "eE")) {
		pass(json, "+-");
		skip_digits(json);
	}
}

struct span json_skip(struct json *json)
{
	char c = json_peek(json);
	struct span span = { json->at, json->at };
	const char *word = c == 't' ? "true" : c == 'f' ? "false" : c == 'n' ? "null" : NULL;
	if (c == '{' || c == '[') {
		for (bool more = json_enter(json, c); more; more = json_more(json, (char)(c + 2))) {
			if (c == '{')
				json_key(json);
			json_skip(json);
		}
	} else if (c == '"')
		json_string(json);
	else if (!word)
		skip_number(json);
	else if ((size_t)(json->end - json->at) < strlen(word) || memcmp(json->at, word, strlen(word)) != 0)
		fail(json);
	else
		json->at += strlen(word);
	span.to = json->at;
	return span;
}

/* The next character with its escape undone; one beyond ASCII is never one of ASCII. */
static int next(struct span *string)
{
	unsigned char c = (unsigned char)*string->from++;
	if (c != '\\')
		return c;
	c = (unsigned char)*string->from++;
	int value = 0;
	for (int i = 0; c == 'u' && i < 4; i++)
		value = value << 4 | hex(*string->from++);
	const char letters[] = "bfnrt", *letter = strchr(letters, c);
	return c == 'u' ? value : letter ? "\b\f\n\r\t"[letter - letters] : c;
}

const char *json_after(struct span string, const char *beginning)
{
	for (; *beginning; beginning++)
		if (string.from == string.to || next(&string) != *beginning)
			return NULL;
	return string.from;
}

bool json_is(struct span string, const char *whole)
{
	return json_after(string, whole) == string.to;
}

bool json_has(struct span string, const char *part)
{
	for (; string.from < string.to; next(&string))
		if (json_after(string, part))
			return true;
	return false;
}

bool json_has_escape(struct span string)
{
	return memchr(string.from, '\\', (size_t)(string.to - string.from)) != NULL;
}

bool json_copy(struct span string, char *out, size_t size)
{
	size_t n = 0;
	for (; string.from < string.to; string.from++) {
		if (*string.from == '\\' && !memchr("/\\\"", *++string.from, 3))
			return false;
		if (n + 1 >= size)
			return false;
		out[n++] = *string.from;
	}
	out[n] = '\0';
	return true;
}
