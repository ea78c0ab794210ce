/* The repeater's parts, one by one, for tests. */
#define NVHOOK_VERSION "0"
#include "repeat.c"
#include "launcher_stubs.h"

/* Does a recording hold for a root? text is changed. */
int holds(char *text, size_t size, int root)
{
	static struct line lines[OPERATIONS];
	size_t count;
	return read_recording(text, size, root, lines, &count);
}

/* Does one look give the same answer? text is changed. */
int looks_same(char *text, size_t size, int root)
{
	struct recording recording = { text, text + size };
	struct line line;
	return read_line(&recording, &line) && look_again(&line, root) == SAME;
}

/* Can a container that was created be opened? */
int opens_target(int pid, const char *root_path)
{
	struct state state = { .pid = pid, .bundle = "/" };
	struct request request = { 0 };
	struct target target;
	snprintf(request.root_path, sizeof request.root_path, "%s", root_path);
	bool opened = open_target(&state, &request, &target);
	close_target(&target);
	return opened;
}

/* The id for a namespace's 0 in a file below an open directory; -1 if it has none. */
int64_t root_in_map(int directory, const char *name)
{
	uint32_t id;
	return mapped_root(directory, name, &id) ? (int64_t)id : -1;
}

/* Is what an operation's line mounts still what it was? line is changed. */
int has_source(char *text, size_t size)
{
	struct recording recording = { text, text + size };
	struct line line;
	int source = -1;
	bool opened = read_line(&recording, &line) && is_operation(&line) && open_source(&line, &source);
	if (source >= 0)
		close(source);
	return opened;
}
