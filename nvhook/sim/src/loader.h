/* Where the dynamic loader would find a library, answered without loading it. */
#ifndef NVHOOK_SIM_LOADER_H
#define NVHOOK_SIM_LOADER_H

#include <stddef.h>

/* Find soname for this machine's own ABI: first in /etc/ld.so.cache, then in the directories that
 * glibc searches by default. Returns 1 with the path and where it was found, else 0. */
int loader_find(const char *soname, char *path, size_t size, const char **source);

#endif
