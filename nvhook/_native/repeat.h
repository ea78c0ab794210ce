/* Repeating what Python did for a container of the same kind (create/recording.py). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "request.h"

#define SCHEMA "nvhook-recording 1"
#define FIELDS 8

/* One line of a recording, and the bytes that follow it. */
struct line {
	const char *field[FIELDS];
	int count;
	const char *data;
	size_t size;
};

/* What is left of a recording. Reading it changes it: fields get their zero bytes. */
struct recording {
	char *at, *end;
};

/* recording.c */
bool read_line(struct recording *recording, struct line *line);
bool is_kind(const struct line *line, const char *kind);
/* A decimal number, nothing before or after it. */
bool number(const char *text, uint64_t *out);
/* The bytes of a file of at most limit bytes, from malloc; NULL where there is none. */
char *read_file(int at, const char *path, size_t limit, size_t *size);
char *read_descriptor(int fd, size_t limit, size_t *size);
void hex_digest(const void *data, size_t size, char out[65]);
/* The content of a file that Python made of something, by digests and the like; NULL if there is none. */
char *read_made(int directory, size_t count, const char *const parts[], size_t *size);

/* observe.c */
enum look { NO_LOOK, SAME, DIFFERENT };
/* Take a look again. NO_LOOK: the line is something else. root: the container's. */
enum look look_again(const struct line *line, int root);

/* devices.c */
struct devices;
/* Allow what a recording's lines say for a process, in its cgroups; NULL where Python has to. */
struct devices *allow_devices(const struct line *lines, size_t count, int process, const char *host_mounts,
			      size_t mounts_size, int directory);
/* Does Python tell systemd of the devices, because the process is in another unit of its than we? */
bool is_told_to_systemd(int process);
/* Take it back, or, if that is kept, only close what is open. */
void end_devices(struct devices *devices, bool keep);

/* repeat.c */
/* The exit status of a hook, or -1 where nothing was done: Python has to start. */
int repeat_hook(const struct state *state, const struct request *request, int argc, char **argv);
