/*
 * Just enough D-Bus to tell systemd which devices a unit may open: method calls on systemd's own socket,
 * one at a time. Without that, its next daemon-reload takes them away.
 *
 * Source: D-Bus specification 0.43 (message protocol, authentication); org.freedesktop.systemd1(5).
 */
#define _GNU_SOURCE
#include "syscalls.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define BUS "org.freedesktop.systemd1"
#define MESSAGE (1 << 16)
#define REPLY (1 << 20)
#define WHY 256

enum { CALL = 1, ERROR = 3 };
enum { FIELD_PATH = 1, FIELD_INTERFACE, FIELD_MEMBER, FIELD_ERROR, FIELD_REPLY, FIELD_DESTINATION, FIELD_SIGNATURE = 8 };

struct bus {
	int fd;
	uint32_t serial;
	const char *path;
	char *why;
	uint8_t *reply; /* the last answer's body */
	size_t reply_size;
};

static int failed(struct bus *bus, int error, const char *what)
{
	snprintf(bus->why, WHY, "%s %s", bus->path, what);
	return error;
}

/* ---- bytes of a message, aligned as they are written ---- */

struct writer {
	uint8_t data[MESSAGE];
	size_t size;
	bool full;
};

static void put(struct writer *w, const void *data, size_t size)
{
	if (size > sizeof w->data - w->size) {
		w->full = true;
		return;
	}
	memcpy(w->data + w->size, data, size);
	w->size += size;
}

static void align(struct writer *w, size_t size) { put(w, "\0\0\0\0\0\0\0", -w->size % size); }

static void put_number(struct writer *w, uint32_t value)
{
	align(w, 4);
	put(w, &value, 4); /* in our own byte order: little-endian, as the header says */
}

static void put_text(struct writer *w, const char *text)
{
	put_number(w, (uint32_t)strlen(text));
	put(w, text, strlen(text) + 1);
}

static void put_signature(struct writer *w, const char *text)
{
	uint8_t size = (uint8_t)strlen(text);
	put(w, &size, 1);
	put(w, text, size + 1U);
}

/* Begin an array of structures; end_array fills its length in. */
static size_t begin_array(struct writer *w)
{
	put_number(w, 0);
	size_t place = w->size - 4;
	align(w, 8);
	return place;
}

static void end_array(struct writer *w, size_t place)
{
	uint32_t size = (uint32_t)(w->size - (place + 4 + (-(place + 4) & 7)));
	if (!w->full)
		memcpy(w->data + place, &size, 4);
}

/* ---- the socket ---- */

static bool send_all(int fd, const void *data, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = send(fd, (const char *)data + done, size - done, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		done += (size_t)n;
	}
	return true;
}

static int receive(struct bus *bus, void *data, size_t size)
{
	for (size_t have = 0; have < size;) {
		ssize_t n = recv(bus->fd, (char *)data + have, size - have, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			int error = -errno;
			return failed(bus, error, strerror(-error));
		}
		if (n == 0)
			return failed(bus, -ECONNRESET, "closed the connection");
		have += (size_t)n;
	}
	return 0;
}

static int connect_to(struct bus *bus, int seconds)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval patience = { .tv_sec = seconds };
	char hello[64], uid[16], line[512], what[128];
	size_t have = 0;
	bus->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof address.sun_path, "%s", bus->path);
	if (bus->fd < 0 || setsockopt(bus->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) < 0 ||
	    setsockopt(bus->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) < 0 || /* connect's, too */
	    connect(bus->fd, (struct sockaddr *)&address, sizeof address) < 0) {
		int error = -errno;
		snprintf(what, sizeof what, "can't be reached: %s", strerror(-error));
		return failed(bus, error, what);
	}
	int n = snprintf(hello, sizeof hello, "_AUTH EXTERNAL ");
	snprintf(uid, sizeof uid, "%u", geteuid());
	for (const char *c = uid; *c; c++)
		n += snprintf(hello + n, sizeof hello - (size_t)n, "%02x", (unsigned)*c);
	n += snprintf(hello + n, sizeof hello - (size_t)n, "\r\n");
	hello[0] = '\0';
	if (!send_all(bus->fd, hello, (size_t)n))
		return failed(bus, -EPIPE, "can't be reached: it does not listen");
	while (have < 2 || memcmp(line + have - 2, "\r\n", 2) != 0) {
		int error = have + 1 < sizeof line ? receive(bus, line + have++, 1) : failed(bus, -EPROTO, "sent too much");
		if (error)
			return error;
	}
	if (have < 3 || memcmp(line, "OK ", 3) != 0) {
		snprintf(what, sizeof what, "does not let us in: %.*s", (int)(have - 2 > 60 ? 60 : have - 2), line);
		return failed(bus, -EACCES, what);
	}
	return send_all(bus->fd, "BEGIN\r\n", 7) ? 0 : failed(bus, -EPIPE, "closed the connection");
}

/* A string at an offset, which moves past it; NULL if there is none. */
static const char *text_at(const uint8_t *data, size_t size, size_t *at)
{
	uint32_t length;
	*at += -*at & 3;
	if (*at > size || size - *at < 5)
		return NULL;
	memcpy(&length, data + *at, 4);
	if (length >= size - *at - 4 || data[*at + 4 + length] != '\0')
		return NULL;
	const char *text = (const char *)data + *at + 4;
	*at += 5 + length;
	return text;
}

/* Read what a header's fields say of a reply; false if they are no fields. */
static bool read_fields(const uint8_t *data, size_t size, uint32_t *reply_to, const char **error)
{
	for (size_t at = 0; at < size;) {
		at += -at & 7;
		if (at > size || size - at < 4 || data[at + 1] != 1 || data[at + 3] != '\0')
			return at >= size;
		uint8_t code = data[at], kind = data[at + 2];
		at += 4;
		if (kind == 'u') {
			at += -at & 3;
			if (size < 4 || at > size - 4)
				return false;
			if (code == FIELD_REPLY)
				memcpy(reply_to, data + at, 4);
			at += 4;
		} else if (kind == 'g') {
			if (at >= size)
				return false;
			at += data[at] + 2U;
		} else {
			const char *text = kind == 's' || kind == 'o' ? text_at(data, size, &at) : NULL;
			if (!text)
				return false;
			if (code == FIELD_ERROR)
				*error = text;
		}
	}
	return true;
}

/* Receive messages until one answers the last call: its kind, or an error. */
static int answer(struct bus *bus, const char **error)
{
	for (;;) {
		uint8_t header[16];
		uint32_t body, fields, reply_to = 0;
		*error = NULL; /* of the message before, which is freed */
		int result = receive(bus, header, sizeof header);
		if (result < 0)
			return result;
		memcpy(&body, header + 4, 4);
		memcpy(&fields, header + 12, 4);
		if (header[0] != 'l' || body > REPLY || fields > REPLY)
			return failed(bus, -EPROTO, "sent something that is no answer");
		size_t padded = fields + (-fields & 7), size = padded + body;
		free(bus->reply);
		bus->reply = malloc(size + 1);
		result = bus->reply ? receive(bus, bus->reply, size) : -ENOMEM;
		if (result < 0)
			return result;
		if (!read_fields(bus->reply, fields, &reply_to, error))
			return failed(bus, -EPROTO, "sent something that is no answer");
		if (reply_to != bus->serial)
			continue; /* a signal */
		bus->reply_size = body;
		bus->reply[size] = '\0';
		if (header[1] != ERROR)
			memmove(bus->reply, bus->reply + padded, body);
		else if (body) { /* the reason, behind the name */
			size_t at = 0;
			const char *reason = text_at(bus->reply + padded, body, &at);
			snprintf(bus->why, WHY, "%s: %s", *error ? *error : "?", reason ? reason : "");
		} else
			snprintf(bus->why, WHY, "%s", *error ? *error : "?");
		return header[1];
	}
}

static int call(struct bus *bus, const char *place, const char *interface, const char *member, const char *signature,
		const struct writer *body)
{
	struct writer *w = calloc(1, sizeof *w);
	const struct {
		uint8_t code;
		const char *kind, *value;
	} fields[] = { { FIELD_PATH, "o", place },	{ FIELD_INTERFACE, "s", interface }, { FIELD_MEMBER, "s", member },
		       { FIELD_DESTINATION, "s", BUS }, { FIELD_SIGNATURE, "g", signature } };
	if (!w)
		return -ENOMEM;
	put(w, (const uint8_t[]){ 'l', CALL, 0, 1 }, 4);
	put_number(w, (uint32_t)body->size);
	put_number(w, ++bus->serial);
	size_t array = begin_array(w);
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
		align(w, 8);
		put(w, &fields[i].code, 1);
		put_signature(w, fields[i].kind);
		if (*fields[i].kind == 'g')
			put_signature(w, fields[i].value);
		else
			put_text(w, fields[i].value);
	}
	end_array(w, array);
	align(w, 8);
	put(w, body->data, body->size);
	bool sent = !w->full && !body->full && send_all(bus->fd, w->data, w->size);
	free(w);
	if (!sent)
		return failed(bus, -EPIPE, "closed the connection");
	const char *error = NULL;
	int kind = answer(bus, &error);
	if (kind == ERROR) {
		char reason[WHY];
		snprintf(reason, sizeof reason, "%s failed: %.200s", member, bus->why);
		memcpy(bus->why, reason, sizeof reason);
		return -EREMOTEIO;
	}
	return kind < 0 ? kind : 0;
}

/* ---- a unit's devices ---- */

static int not_understood(struct bus *bus, const char *unit)
{
	snprintf(bus->why, WHY, "%s: an answer about %s is not understood", bus->path, unit);
	return -EPROTO;
}

/* Get a property, a variant of some type, whose value is at *at in the reply. */
static int get(struct bus *bus, const char *unit, const char *name, const char *signature, size_t *at)
{
	char place[1024] = "/org/freedesktop/systemd1/unit/";
	size_t n = strlen(place);
	for (const char *c = unit; *c && n + 4 < sizeof place; c++) {
		bool digit = *c >= '0' && *c <= '9';
		bool kept = (digit && c > unit) || (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');
		n += (size_t)snprintf(place + n, sizeof place - n, kept ? "%c" : "_%02x", (uint8_t)*c);
	}
	struct writer *body = calloc(1, sizeof *body);
	if (!body)
		return -ENOMEM;
	const char *end = strrchr(unit, '.');
	put_text(body, end && strcmp(end, ".service") == 0 ? BUS ".Service" : BUS ".Scope");
	put_text(body, name);
	int result = call(bus, place, "org.freedesktop.DBus.Properties", "Get", "ss", body);
	free(body);
	if (result < 0)
		return result;
	size_t length = strlen(signature);
	*at = length + 2;
	if (bus->reply_size >= *at && bus->reply[0] == length && memcmp(bus->reply + 1, signature, length + 1) == 0)
		return 0;
	return not_understood(bus, unit);
}

/* Is a path of the list of devices ("c 195:1 rw" in lines)? */
static bool is_listed(const char *devices, const char *path)
{
	char each[64], type, access[8];
	unsigned major, minor;
	for (const char *at = devices; sscanf(at, "%c %u:%u %7s", &type, &major, &minor, access) == 4;) {
		snprintf(each, sizeof each, "/dev/%s/%u:%u", type == 'b' ? "block" : "char", major, minor);
		if (strcmp(each, path) == 0)
			return true;
		at = strchrnul(at, '\n');
		at += *at == '\n';
	}
	return false;
}

/* Assign DeviceAllow: an empty list, which empties it, where kept ones are given, and then those. */
static void put_property(struct writer *w)
{
	align(w, 8);
	put_text(w, "DeviceAllow");
	put_signature(w, "a(ss)");
}

static void put_device(struct writer *w, const char *path, const char *access)
{
	align(w, 8);
	put_text(w, path);
	put_text(w, access);
}

/* Put devices on a unit's list, or take them off; how many, 0 if there was nothing to do. */
static int change(struct bus *bus, const char *unit, const char *devices, bool forget, struct writer *w)
{
	uint32_t size;
	size_t at;
	int result = get(bus, unit, "DevicePolicy", "s", &at), count = 0;
	const char *policy = result < 0 ? NULL : text_at(bus->reply, bus->reply_size, &at);
	bool is_open = policy && strcmp(policy, "auto") == 0;
	if (result == 0 && policy)
		result = get(bus, unit, "DeviceAllow", "a(ss)", &at);
	if (result < 0)
		return result;
	at += -at & 3;
	bool good = policy && at + 4 <= bus->reply_size;
	if (good)
		memcpy(&size, bus->reply + at, 4);
	at += 4 + (-(at + 4) & 7);
	if (!good || size > bus->reply_size || (size && at + size > bus->reply_size))
		return not_understood(bus, unit);
	if (!forget && is_open && size == 0) /* with a list it would be closed to all other devices */
		return 0;
	put_text(w, unit);
	put_number(w, 1); /* runtime: in /run, gone with the unit */
	size_t properties = begin_array(w), array;
	put_property(w);
	array = begin_array(w);
	if (forget) {
		end_array(w, array); /* an empty list empties it, the next one is added */
		put_property(w);
		array = begin_array(w);
		for (size_t end = at + size; at < end; at += -at & 7) {
			const char *path = text_at(bus->reply, end, &at), *access = path ? text_at(bus->reply, end, &at) : NULL;
			if (!access) /* what follows would be lost */
				return not_understood(bus, unit);
			if (is_listed(devices, path))
				count++;
			else
				put_device(w, path, access);
		}
		if (!count)
			return 0;
	} else {
		char path[64], type, access[8];
		unsigned major, minor;
		for (const char *line = devices; sscanf(line, "%c %u:%u %7s", &type, &major, &minor, access) == 4; count++) {
			snprintf(path, sizeof path, "/dev/%s/%u:%u", type == 'b' ? "block" : "char", major, minor);
			put_device(w, path, access); /* parsed by systemd 240 on, it need not exist */
			line = strchrnul(line, '\n');
			line += *line == '\n';
		}
	}
	end_array(w, array);
	end_array(w, properties);
	result = call(bus, "/org/freedesktop/systemd1", BUS ".Manager", "SetUnitProperties", "sba(sv)", w);
	return result < 0 ? result : count;
}

int nvh_systemd_devices(const char *path, const char *unit, const char *devices, int forget, int seconds, char why[256])
{
	struct bus bus = { .fd = -1, .path = path, .why = why };
	struct writer *body = calloc(1, sizeof *body);
	*why = '\0';
	int result = body ? connect_to(&bus, seconds) : -ENOMEM;
	if (!result)
		result = change(&bus, unit, devices, forget, body);
	if (bus.fd >= 0)
		close(bus.fd);
	free(bus.reply);
	free(body);
	return result;
}
