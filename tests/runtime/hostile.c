/* A container that fights back: hostile DIRECTORY... -- PATH..., until /stop exists.
 *
 * Directories are swapped with links out of the root; at each path in its turn stands a link, a FIFO,
 * a directory or a file for a moment. One of each at a time: with all at once, nobody would get past
 * the first path, and the others would never be tried.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const links[] = {
	"/etc/passwd", "../../../../../../../../../../outside", "/proc/self/fd", "/proc/1/root/outside", "/", ".",
};

static void swap(const char *directory, unsigned turn)
{
	char aside[512];
	snprintf(aside, sizeof aside, "%s.aside", directory);
	if (rename(directory, aside) < 0)
		return;
	symlink(links[turn % 6], directory);
	usleep(turn % 50);
	unlink(directory);
	rename(aside, directory);
}

static void clear(const char *path)
{
	unlink(path);
	rmdir(path);
}

static void place(const char *path, unsigned turn)
{
	clear(path);
	switch (turn % 4) {
	case 0:
		symlink(links[turn / 4 % 6], path);
		break;
	case 1:
		mkfifo(path, 0666);
		break;
	case 2:
		mkdir(path, 0777);
		break;
	case 3:
		fclose(fopen(path, "w") ?: stdout);
		break;
	}
}

int main(int argc, char **argv)
{
	int directories = 0;
	while (strcmp(argv[directories + 1], "--"))
		directories++;
	char **paths = argv + directories + 2;
	unsigned count = (unsigned)(argc - directories - 2), random = 1;
	for (unsigned turn = 0; access("/stop", F_OK) < 0; turn++) {
		random = random * 1103515245 + 12345;
		const char *path = paths[(random >> 16) % count];
		place(path, random >> 8);
		swap(argv[1 + turn % (unsigned)directories], turn);
		usleep(random >> 20 & 255);
		clear(path);
	}
	for (int i = 1; i < argc; i++)
		unlink(argv[i]);
	return 0;
}
