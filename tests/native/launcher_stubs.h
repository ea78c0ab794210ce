/* What the repeater calls of launcher.c, for programs that have no launcher. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

int fail(const char *what, const char *hint)
{
	(void)what;
	(void)hint;
	return 1;
}

bool path_of(char *out, size_t size, const char *format, ...)
{
	(void)out;
	(void)size;
	(void)format;
	return false;
}
