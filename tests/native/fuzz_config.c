/* A bundle's config.json, and what is added to it: the result has to be read as the original was. */
#include <stdlib.h>
#include <string.h>

#include "splice.h"

#define X16 "xxxxxxxxxxxxxxxx"
#define X128 X16 X16 X16 X16 X16 X16 X16 X16

static const char *const items[ADDITIONS] = {
	[ADD_DEVICES] = "{\"path\":\"/dev/x\"},{}",
	[ADD_ENV] = "\"A=" X128 X128 X128 "\"", /* more than the room for names */
	[ADD_RULES] = "{\"allow\":true}",
	[ADD_MOUNTS] = "{\"destination\":\"/x\"}",
	[ADD_GIDS] = "7,8",
	[ADD_HOOKS] = "{\"path\":\"/x\"}",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	struct request request = read_request(text, size);
	if (request.repeatable && (!request.understood || !*request.root_path))
		abort();
	struct span spans[ADDITIONS];
	for (int i = 0; i < ADDITIONS; i++)
		spans[i] = (struct span){ items[i], items[i] + strlen(items[i]) };
	size_t spliced_size;
	char *spliced = splice_items(text, size, &request, spans, &spliced_size);
	if (spliced) {
		struct request again = read_request(spliced, spliced_size);
		if (!again.understood || again.wanted != request.wanted || again.gpu_hooks != request.gpu_hooks ||
		    again.repeatable < request.repeatable || again.user_namespace != request.user_namespace)
			abort();
	}
	free(spliced);
	return 0;
}
