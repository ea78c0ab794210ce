/* A state on a hook's standard input. */
#include <stdlib.h>
#include <string.h>

#include "request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct state state;
	bool is_good = read_state((const char *)data, size, &state);
	if (*state.bundle && *state.bundle != '/')
		abort();
	if (is_good && (!*state.id || !*state.bundle || state.pid <= 1))
		abort();
	return 0;
}
