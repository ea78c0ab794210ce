#define _GNU_SOURCE
#include "splice.h"

#include <stdlib.h>
#include <string.h>

static const enum node lists[ADDITIONS] = { DEVICES, ENV, RULES, MOUNTS, GIDS, CREATE_RUNTIME };

/* More than the names and brackets of all lists and of what leads to them. */
#define MAX_NAMES 256

struct output {
	char *at;
	const struct place *places;
	const struct span *items;
};

static void put(struct output *out, struct span part)
{
	out->at = mempcpy(out->at, part.from, (size_t)(part.to - part.from));
}

static bool is_empty(struct span items)
{
	return items.from == items.to;
}

/* The member of an object that leads to a node, or NODES. */
static enum node step(enum node object, enum node to)
{
	for (; to != TOP; to = node_types[to].parent)
		if (node_types[to].parent == object)
			return to;
	return NODES;
}

/* The members an object has to get, in the order of the lists they lead to. */
static void put_members(struct output *out, enum node object)
{
	uint64_t done = 0;
	for (int i = 0; i < ADDITIONS; i++) {
		enum node member = step(object, lists[i]);
		if (is_empty(out->items[i]) || member == NODES || out->places[member].from || done >> member & 1)
			continue;
		bool is_list = member == lists[i];
		out->at = stpcpy(stpcpy(out->at, done ? ",\"" : "\""), node_types[member].name);
		out->at = stpcpy(out->at, is_list ? "\":[" : "\":{");
		if (is_list)
			put(out, out->items[i]);
		else
			put_members(out, member);
		*out->at++ = is_list ? ']' : '}';
		done |= (uint64_t)1 << member;
	}
}

char *splice_items(const char *text, size_t size, const struct request *request, const struct span items[ADDITIONS],
	     size_t *spliced_size)
{
	const struct place *places = request->places;
	enum node changed[ADDITIONS]; /* what is there and gets items or members, by where it gets them */
	size_t count = 0, room = size + MAX_NAMES;
	for (int i = 0; request->understood && i < ADDITIONS; i++) {
		enum node n = lists[i];
		while (n != TOP && !places[n].from)
			n = node_types[n].parent;
		if (is_empty(items[i]))
			continue;
		if (*places[n].from == 'n')
			return NULL;
		room += (size_t)(items[i].to - items[i].from);
		size_t at = 0;
		while (at < count && places[changed[at]].end < places[n].end)
			at++;
		if (at < count && changed[at] == n)
			continue;
		memmove(changed + at + 1, changed + at, (count++ - at) * sizeof *changed);
		changed[at] = n;
	}
	char *spliced = request->understood ? malloc(room) : NULL;
	if (!spliced)
		return NULL;
	struct output out = { spliced, places, items };
	const char *done = text;
	for (size_t c = 0; c < count; c++) {
		const struct place *place = &places[changed[c]];
		put(&out, (struct span){ done, place->end });
		done = place->end;
		if (!place->is_empty)
			*out.at++ = ',';
		if (node_types[changed[c]].kind == OBJECT)
			put_members(&out, changed[c]);
		for (int i = 0; i < ADDITIONS; i++)
			if (lists[i] == changed[c])
				put(&out, items[i]);
	}
	put(&out, (struct span){ done, text + size });
	*spliced_size = (size_t)(out.at - spliced);
	return spliced;
}
