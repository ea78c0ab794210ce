/* Add to a config.json what Python added to another: byte for byte as formats/json_splice.py does. */
#pragma once

#include "request.h"

/* cdef begin */
/* Lists, in the order in which formats/oci_edit.py appends to them. */
enum addition { ADD_DEVICES, ADD_ENV, ADD_RULES, ADD_MOUNTS, ADD_GIDS, ADD_HOOKS, ADDITIONS };

/*
 * The text with items (compact JSON, with commas between them, or nothing) at the end of its lists;
 * to be freed. request is what was read of the text. NULL if something on the way is null or the
 * request was not understood: then it's Python's.
 */
char *splice_items(const char *text, size_t size, const struct request *request, const struct span items[ADDITIONS],
	     size_t *spliced_size);
/* cdef end */
