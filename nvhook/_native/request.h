/* What nvhook reads of a container's state and config.json, and where a config.json takes additions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "json.h"

/* cdef begin */
/* The values that are looked at, wherever they stand; the rest of both texts is skipped. */
enum node {
	TOP, PROCESS, ENV, VARIABLE, CAPABILITIES, USER, GIDS, ROOT, ROOT_PATH,
	MOUNTS, MOUNT, MOUNT_SOURCE, MOUNT_DESTINATION, ANNOTATIONS, ANNOTATION,
	LINUX, NAMESPACES, NAMESPACE, NAMESPACE_TYPE, PROPAGATION, DEVICES, RESOURCES, RULES,
	HOOKS, PRESTART, CREATE_RUNTIME,
	STATE, STATE_ID, STATE_PID, STATE_BUNDLE, STATE_OLD_BUNDLE, STATE_STATUS, STATE_ROOT,
	STATE_ANNOTATIONS, STATE_ANNOTATION,
	NODES
};

struct place {
	const char *from, *to; /* the value; NULL where it is absent */
	const char *end;       /* where an object or a list takes a further member or item */
	bool is_empty;
};

struct state {
	char id[256], bundle[4096];
	int pid;
};

struct request {
	/* False if no configuration could make this a GPU container. */
	bool wanted;
	/* JSON, and what is looked at is of the right type and there once. */
	bool understood;
	/* Understood, Python would take it, and the digest covers all that it may decide from. */
	bool repeatable;
	bool user_namespace;
	/* Among the hooks there may be NVIDIA's or nvhook's. */
	bool gpu_hooks;
	char root_path[4096]; /* relative to the bundle, or absolute */
	uint8_t digest[32];
	struct place places[NODES]; /* in the text that was read */
};

/*
 * False if Python has to say what is wrong with a state. The bundle is there even then, if that
 * much is understood, and otherwise empty.
 */
bool read_state(const char *text, size_t size, struct state *out);
struct request read_request(const char *text, size_t size);
/* cdef end */

struct node_type {
	const char *name;
	enum node parent;
	enum { ANY, TEXT, LIST, OBJECT, MAP } kind;
	bool is_digested;
};

extern const struct node_type node_types[NODES];
