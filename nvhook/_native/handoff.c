/*
 * Handing a hook's work to the interpreter that edited the bundle, and waits for it (handoff.py).
 *
 * The request is each argument and an empty one, ended by NUL, and the state; the answer, once it is
 * accepted, the byte A, the exit status and what goes to standard error. Before that byte nothing is
 * done: whoever does not get it starts Python itself.
 */
#define _GNU_SOURCE
#include "launcher.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define ACCEPTED 'A'

/* Connect to a bundle's interpreter, which must run as the same user; -1 if there is none. */
static int connect_to(const char *bundle)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred peer;
	socklen_t size = sizeof peer;
	struct stat st;
	if (stat(bundle, &st) < 0)
		return -1;
	snprintf(address.sun_path, sizeof address.sun_path, "/run/nvhook/handoff-%llu-%llu",
		 (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid())
		return fd;
	close(fd);
	return -1;
}

static bool send_all(int fd, const char *data, size_t size)
{
	while (size > 0) {
		ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		data += n;
		size -= (size_t)n;
	}
	return true;
}

/* Read to the end; a connection that breaks ends, too. */
static size_t receive_all(int fd, char *data, size_t size)
{
	size_t have = 0;
	while (have < size) {
		ssize_t n = recv(fd, data + have, size - have, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		have += (size_t)n;
	}
	return have;
}

int hand_over(int argc, char **argv, const char *bundle, const char *state, size_t size)
{
	int fd = connect_to(bundle);
	if (fd < 0)
		return -1;
	bool sent = true;
	for (int i = 0; i < argc; i++)
		sent = sent && send_all(fd, argv[i], strlen(argv[i]) + 1);
	sent = sent && send_all(fd, "", 1) && send_all(fd, state, size) && shutdown(fd, SHUT_WR) == 0;
	/* Also after a failure: what counts is whether it was accepted. */
	char answer[4096];
	size_t have = receive_all(fd, answer, sizeof answer);
	close(fd);
	if (have == 0 || answer[0] != ACCEPTED)
		return -1;
	if (have == 1)
		return fail("was killed while it gave the container its GPUs", "try again");
	fwrite(answer + 2, 1, have - 2, stderr);
	return (unsigned char)answer[1];
}
