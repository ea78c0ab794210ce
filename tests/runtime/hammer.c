/* Open two devices all the time: hammer ATTACHED OTHER, until /stop exists.
 *
 * ATTACHED must answer ENXIO (allowed, no driver), OTHER EPERM; prints tries and wrong answers.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	unsigned long tries = 0, denied = 0, permitted = 0;
	if (argc != 3)
		return 2;
	do {
		for (int i = 0; i < 1000; i++, tries++) {
			if (open(argv[1], O_RDWR) >= 0 || errno != ENXIO)
				denied++;
			if (open(argv[2], O_RDWR) >= 0 || errno != EPERM)
				permitted++;
		}
	} while (access("/stop", F_OK) < 0);
	printf("%lu %lu %lu\n", tries, denied, permitted);
	return 0;
}
