/* A CUDA program's first steps: find libcuda.so.1 through the loader, count the devices, name them. */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*init_t)(unsigned);
typedef int (*count_t)(int *);
typedef int (*get_t)(int *, int);
typedef int (*uuid_t)(unsigned char *, int);

int main(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda) {
		printf("cuda: %s\n", dlerror());
		return 1;
	}
	init_t init = (init_t)dlsym(cuda, "cuInit");
	count_t count = (count_t)dlsym(cuda, "cuDeviceGetCount");
	get_t get = (get_t)dlsym(cuda, "cuDeviceGet");
	uuid_t uuid = (uuid_t)dlsym(cuda, "cuDeviceGetUuid");
	int devices = 0, rc = init(0);
	printf("cuInit = %d\n", rc);
	if (rc || count(&devices))
		return 2;
	printf("devices = %d\n", devices);
	for (int i = 0; i < devices; i++) {
		unsigned char id[16];
		int device;
		if (get(&device, i) || uuid(id, device))
			return 3;
		printf("GPU-");
		for (int k = 0; k < 16; k++)
			printf("%s%02x", k == 4 || k == 6 || k == 8 || k == 10 ? "-" : "", id[k]);
		printf("\n");
	}
	return 0;
}
