/* What the parts of the launcher share. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Print one line on standard error; returns 1, the exit status of a failure. */
int fail(const char *what, const char *hint);
/* Print a path; false if it is too long. */
__attribute__((format(printf, 3, 4))) bool path_of(char *out, size_t size, const char *format, ...);

/* Map a config.json; NULL if that can't be done: Python says why. */
const char *map_config(const char *path, size_t *size);

/* interpreter.c */
/* The path of the launcher beside this executable: what a hook entry calls. */
bool launcher_path(char *path, size_t size);
/* Become Python: a door (argv[1] is its module) or the command line. Returns only on failure. */
int run_python(bool door, int argc, char **argv);

/* runtime.c */
int runtime(int argc, char **argv);
