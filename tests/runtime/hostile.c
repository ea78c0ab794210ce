/* A container that fights back: hostile DIRECTORY... -- PATH..., until /stop exists.
 *
 * Directories are swapped with links out of the root, and at every path stands by turns nothing, a
 * link, a FIFO, a directory, a socket's or file's double.
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

static void place(const char *path, unsigned turn)
{
	unlink(path);
	rmdir(path);
	switch (turn % 5) {
	case 0:
		symlink(links[turn / 5 % 6], path);
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
	for (unsigned turn = 0; access("/stop", F_OK) < 0; turn++) {
		int paths = 0;
		for (int i = 1; i < argc; i++) {
			if (!strcmp(argv[i], "--"))
				paths = 1;
			else if (paths)
				place(argv[i], turn + (unsigned)i);
			else
				swap(argv[i], turn);
		}
	}
	for (int i = 1; i < argc; i++)
		unlink(argv[i]);
	return 0;
}
