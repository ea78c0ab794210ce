/* What the container's loader makes of libraries: load_check NAME..., then cuInit.
 *
 * A line for each name: NAME = the file it was loaded from, or the loader's error.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

typedef int (*init_t)(unsigned);
typedef int (*name_t)(int, const char **);

int main(int argc, char **argv)
{
	void *cuda;

	for (int i = 1; i < argc; i++) {
		struct link_map *map = NULL;
		void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);

		if (library && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0)
			printf("%s = %s\n", argv[i], map->l_name);
		else
			printf("%s = %s\n", argv[i], dlerror());
	}
	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda)
		return 1;
	init_t init = (init_t)dlsym(cuda, "cuInit");
	name_t name_of = (name_t)dlsym(cuda, "cuGetErrorName");
	if (!init || !name_of)
		return 2;
	const char *name = "unknown";
	int rc = init(0);
	name_of(rc, &name);
	printf("cuInit = %d %s\n", rc, name);
	return 0;
}
