/*
 * A container's state and config.json, read in one pass. What is not understood here is left to
 * Python, which has the one set of error messages.
 *
 * The digest covers what Python decides from: formats/oci.py keeps exactly that. Beside it, what
 * Python adds to a config.json (formats/oci_edit.py) depends on what it finds there:
 *   linux.devices, linux.resources.devices, process.user.additionalGids   in the digest
 *   hooks: its own and NVIDIA's are replaced                               gpu_hooks
 *   process.env, mounts, other hooks: what equals an addition is not added again. Of these the
 *     digest has nvhook's own variables and nothing else, so that another vendor's CDI additions
 *     can't be repeated by it.
 */
#define _GNU_SOURCE
#include "request.h"

#include <stdlib.h>
#include <string.h>

#include "blake2b.h"
#include "syscalls.h"

/* What Python refuses to read (formats/oci.py). */
#define MAX_STATE ((size_t)1 << 20)
#define MAX_CONFIG ((size_t)16 << 20)

const struct node_type node_types[NODES] = {
	[TOP] = { "", TOP, OBJECT, false },
	[PROCESS] = { "process", TOP, OBJECT, false },
	[ENV] = { "env", PROCESS, LIST, false }, [VARIABLE] = { "", ENV, TEXT, false },
	[CAPABILITIES] = { "capabilities", PROCESS, ANY, true },
	[USER] = { "user", PROCESS, OBJECT, false }, [GIDS] = { "additionalGids", USER, LIST, true },
	[ROOT] = { "root", TOP, OBJECT, false }, [ROOT_PATH] = { "path", ROOT, TEXT, false },
	[MOUNTS] = { "mounts", TOP, LIST, false }, [MOUNT] = { "", MOUNTS, OBJECT, false },
	[MOUNT_SOURCE] = { "source", MOUNT, TEXT, false }, [MOUNT_DESTINATION] = { "destination", MOUNT, TEXT, false },
	[ANNOTATIONS] = { "annotations", TOP, MAP, false }, [ANNOTATION] = { "", ANNOTATIONS, TEXT, false },
	[LINUX] = { "linux", TOP, OBJECT, false },
	[NAMESPACES] = { "namespaces", LINUX, LIST, false }, [NAMESPACE] = { "", NAMESPACES, OBJECT, false },
	[NAMESPACE_TYPE] = { "type", NAMESPACE, ANY, false },
	[PROPAGATION] = { "rootfsPropagation", LINUX, TEXT, true },
	[DEVICES] = { "devices", LINUX, LIST, true },
	[RESOURCES] = { "resources", LINUX, OBJECT, false }, [RULES] = { "devices", RESOURCES, LIST, true },
	[HOOKS] = { "hooks", TOP, OBJECT, false },
	[PRESTART] = { "prestart", HOOKS, LIST, false }, [CREATE_RUNTIME] = { "createRuntime", HOOKS, LIST, false },

	[STATE] = { "", STATE, OBJECT, false },
	[STATE_ID] = { "id", STATE, TEXT, false }, [STATE_PID] = { "pid", STATE, ANY, false },
	[STATE_BUNDLE] = { "bundle", STATE, TEXT, false },
	[STATE_OLD_BUNDLE] = { "bundlePath", STATE, TEXT, false }, /* docker before 17.06 */
	[STATE_STATUS] = { "status", STATE, TEXT, false }, [STATE_ROOT] = { "root", STATE, TEXT, false },
	[STATE_ANNOTATIONS] = { "annotations", STATE, MAP, false },
	[STATE_ANNOTATION] = { "", STATE_ANNOTATIONS, TEXT, false },
};

struct walk {
	struct json json;
	struct blake2b hash;
	struct request *out;
	struct span key; /* of the map's member that is being read */
	bool is_odd, has_escaped_name;
	bool names_devices, has_visible, visible, cuda, require; /* core/request.py, of the last of each name */
};

/* A text, empty where it is absent or null. */
static struct span text_of(const struct request *request, enum node n)
{
	const struct place *place = &request->places[n];
	bool is_text = place->from && *place->from == '"';
	return is_text ? (struct span){ place->from + 1, place->to - 1 } : (struct span){ "", "" };
}

/* Into the digest: with what it is and its length, so that no two sequences are alike. */
static void note(struct walk *w, enum node n, struct span span)
{
	uint64_t head[2] = { n, (uint64_t)(span.to - span.from) };
	blake2b_add(&w->hash, head, sizeof head);
	blake2b_add(&w->hash, span.from, (size_t)(span.to - span.from));
}

static void variable(struct walk *w)
{
	struct span entry = text_of(w->out, VARIABLE), value = entry;
	if (!json_after(entry, "NVIDIA_") && !json_after(entry, "CUDA_VERSION") &&
	    !json_after(entry, "DOCKER_RESOURCE"))
		return;
	const char *equals = memchr(entry.from, '=', (size_t)(entry.to - entry.from));
	w->has_escaped_name |= json_has_escape((struct span){ entry.from, equals ? equals : entry.to });
	note(w, VARIABLE, entry);
	if ((value.from = json_after(entry, "NVIDIA_VISIBLE_DEVICES="))) {
		w->has_visible = true;
		w->visible = !json_is(value, "") && !json_is(value, "void"); /* what CDI sets */
	} else if ((value.from = json_after(entry, "CUDA_VERSION=")))
		w->cuda = !json_is(value, "");
	else if ((value.from = json_after(entry, "NVIDIA_REQUIRE_CUDA=")))
		w->require = !json_is(value, "");
	else
		w->names_devices |= json_after(entry, "DOCKER_RESOURCE") && json_has(entry, "=");
}

static void annotation(struct walk *w)
{
	if (!json_after(w->key, "cdi.k8s.io/"))
		return;
	w->names_devices = true;
	w->has_escaped_name |= json_has_escape(w->key);
	note(w, ANNOTATIONS, w->key);
	note(w, ANNOTATION, text_of(w->out, ANNOTATION));
}

static void mount(struct walk *w)
{
	struct span destination = text_of(w->out, MOUNT_DESTINATION);
	w->is_odd |= json_is(destination, "");
	if (!json_has(destination, "/var/run/nvidia-container-devices"))
		return;
	w->names_devices = true;
	w->has_escaped_name |= json_has_escape(destination);
	note(w, MOUNT_SOURCE, text_of(w->out, MOUNT_SOURCE));
	note(w, MOUNT_DESTINATION, destination);
}

/* The node of an object's member; without a name, of any member or item. */
static enum node child(enum node parent, const struct span *name)
{
	enum node n = TOP + 1;
	for (; n < NODES; n++)
		if (node_types[n].parent == parent && n != parent && (!name || json_is(*name, node_types[n].name)))
			break;
	return n;
}

static void value(struct walk *w, enum node n);

/* Past the members of an object or the items of a list. */
static void contents(struct walk *w, enum node n)
{
	struct json *json = &w->json;
	struct place *places = w->out->places;
	char open = *json->at, close = (char)(open + 2); /* ASCII */
	enum node inner = node_types[n].kind == OBJECT ? NODES : child(n, NULL);
	for (enum node each = 0; each < NODES && inner == NODES; each++)
		if (node_types[each].parent == n && each != n)
			places[each].from = NULL; /* of the item before */
	places[n].end = json->at + 1;
	places[n].is_empty = true;
	for (bool more = json_enter(json, open); more; more = json_more(json, close)) {
		if (open == '{')
			w->key = json_key(json);
		if (node_types[n].kind == OBJECT && (inner = child(n, &w->key)) < NODES)
			w->is_odd |= json_has_escape(w->key) || places[inner].from;
		if (inner < NODES)
			value(w, inner);
		else
			json_skip(json);
		places[n].end = json->at;
		places[n].is_empty = false;
	}
}

static void value(struct walk *w, enum node n)
{
	const struct node_type *type = &node_types[n];
	struct place *place = &w->out->places[n];
	char first = json_peek(&w->json), wanted = "\0\"[{{"[type->kind];
	*place = (struct place){ .from = w->json.at };
	if (wanted && first == wanted && type->kind != TEXT)
		contents(w, n);
	else
		json_skip(&w->json);
	place->to = w->json.at;
	if (w->json.bad)
		return;
	/* Null is as good as absent, but not as an item. */
	bool is_absent = first == 'n' && node_types[type->parent].kind != LIST;
	w->is_odd |= wanted && first != wanted && !is_absent;
	if (type->is_digested)
		note(w, n, (struct span){ place->from, place->to });
	if (n == VARIABLE)
		variable(w);
	else if (n == ANNOTATION)
		annotation(w);
	else if (n == MOUNT)
		mount(w);
	else if (n == NAMESPACE)
		w->out->user_namespace |= json_is(text_of(w->out, NAMESPACE_TYPE), "user");
}

/* Read a text that is a node; true if it is understood. */
static bool walk(struct walk *w, enum node n, const char *text, size_t size, struct request *out)
{
	*w = (struct walk){ .json = { .at = text, .end = text + size }, .out = out };
	blake2b_start(&w->hash);
	value(w, n);
	return json_done(&w->json) && !w->is_odd;
}

bool read_state(const char *text, size_t size, struct state *out)
{
	struct walk w;
	struct request at = { 0 };
	*out = (struct state){ 0 };
	bool is_good = walk(&w, STATE, text, size, &at) && size <= MAX_STATE;
	if (w.json.bad)
		return false;
	struct span bundle = text_of(&at, STATE_BUNDLE), pid = { at.places[STATE_PID].from, at.places[STATE_PID].to };
	if (json_is(bundle, ""))
		bundle = text_of(&at, STATE_OLD_BUNDLE);
	if (!json_copy(bundle, out->bundle, sizeof out->bundle) || *out->bundle != '/')
		*out->bundle = '\0';
	/* What follows the digits in a text that was understood ends the number. */
	char *end = NULL;
	long number = pid.from ? strtol(pid.from, &end, 10) : 0;
	out->pid = end == pid.to && number > 1 && number <= INT32_MAX ? (int)number : 0;
	return json_copy(text_of(&at, STATE_ID), out->id, sizeof out->id) && *out->id && *out->bundle && out->pid &&
	       is_good;
}

/* True if \u00XX spells a character that what makes a GPU container is written with. */
static bool spells_words(const char *from, const char *to)
{
	while (from < to && (from = memmem(from, (size_t)(to - from), "\\u00", 4)) && to - (from += 4) >= 2) {
		/* -./ 0-9, A-O, P-Z _, a-o, p-z */
		char high = *from, low = from[1] | 32;
		if ((high == '2' && low >= 'd') || (high >= '3' && high <= '7' && !(high == '3' && low > '9')))
			return true;
	}
	return false;
}

/* True unless a text that is not understood has nothing that a GPU container has. */
static bool may_ask(const char *text, size_t size)
{
	static const char visible[] = "NVIDIA_VISIBLE_DEVICES";
	static const char *const words[] = { "CUDA_VERSION", "nvidia-container-devices", "DOCKER_RESOURCE", "cdi.k8s.io" };
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (memmem(text, size, words[i], strlen(words[i])))
			return true;
	const char *at = text, *end = text + size;
	while ((at = memmem(at, (size_t)(end - at), visible, sizeof visible - 1))) {
		at += sizeof visible - 1;
		size_t left = (size_t)(end - at);
		if (!(left >= 2 && memcmp(at, "=\"", 2) == 0) && !(left >= 6 && memcmp(at, "=void\"", 6) == 0))
			return true;
	}
	return spells_words(text, end);
}

static bool mentions(const struct place *place, const char *word)
{
	return place->from && memmem(place->from, (size_t)(place->to - place->from), word, strlen(word));
}

struct request read_request(const char *text, size_t size)
{
	struct request out = { 0 };
	struct walk w;
	out.understood = walk(&w, TOP, text, size, &out);
	const struct place *hooks = &out.places[HOOKS], *process = &out.places[PROCESS];
	out.wanted = out.understood ? w.names_devices || (w.has_visible ? w.visible : w.cuda && !w.require) :
				      may_ask(text, size);
	out.gpu_hooks = !out.understood || mentions(hooks, "nvhook") || mentions(hooks, "nvidia-container") ||
			spells_words(hooks->from, hooks->to);
	out.repeatable = out.understood && size <= MAX_CONFIG && !w.has_escaped_name && process->from &&
			 *process->from == '{' && json_copy(text_of(&out, ROOT_PATH), out.root_path, sizeof out.root_path) &&
			 *out.root_path;
	char user = out.user_namespace;
	note(&w, NAMESPACE, (struct span){ &user, &user + 1 });
	blake2b_end(&w.hash, out.digest);
	return out;
}

int nvh_request_digest(const char *config, size_t size, uint8_t digest[32])
{
	struct request request = read_request(config, size);
	memcpy(digest, request.digest, sizeof request.digest);
	return request.repeatable;
}
