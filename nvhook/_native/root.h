/*
 * A container's root directory, touched by descriptor only, and changed step by step.
 *
 * Whatever an image contains (links out of the root, loops, dangling links, sockets for files), nothing
 * here reaches the host: existing directories are resolved by the kernel inside the root, new ones are
 * made component by component, and the last component is never followed.
 *
 * Every change is a step, told to a recorder before it is made, and every step has its undo. The hook
 * and the repeater record into the root's own list, inject into its journal.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct stat;

/* cdef begin */
enum { NVH_DIRECTORY, NVH_FILE, NVH_LINK, NVH_CONTENT, NVH_MOUNT };
/* A container that is created, that runs, that runs in a user namespace of its own. */
enum { NVH_CREATED, NVH_RUNS, NVH_CONFINED };

/* Why something is not done, in the place of a negative errno. */
enum {
	NVH_NO_PATH = -5000,	   /* not a path in a container */
	NVH_VOLUME = -5001,	   /* on a mount of something the host has, too */
	NVH_WRONG_TYPE = -5002,	   /* there is something else; mode says what */
	NVH_KERNEL_FILES = -5003,  /* it leads into procfs or its like; magic says into which */
	NVH_SHARED = -5004,	   /* mounts there reach the host */
	NVH_KEEPS_CHANGING = -5005,
	NVH_STOPPED = -5006,	   /* the recorder did not take a step */
	NVH_COVERED = -5007,	   /* undo: another mount is on it */
	NVH_MOUNTED = -5008,	   /* undo: something is mounted there */
	NVH_CHANGED = -5009,	   /* undo: the container has put something else there */
	NVH_NOT_A_MOUNT = -5010,
};

/* One change. What a kind has no use for is 0 or NULL. */
struct nvh_step {
	int kind;
	const char *path;
	const char *link, *old_link;	 /* what a link points to, and did before; NULL: it was not there */
	const char *data, *old_data;	 /* a file's bytes, and those before; NULL: it was not there */
	size_t size, old_size;
	uint32_t mode, uid, gid;	 /* of the file before */
	uint64_t device, inode;		 /* of what is mounted; of a file's directory */
};

typedef int (*nvh_recorder)(void *context, const struct nvh_step *step);
struct nvh_root;

/* What a refusal is about: a verb and its object, a path, and what was found. */
struct nvh_refusal {
	const char *what;
	const char *path;
	uint32_t mode;
	int64_t magic;
};

/*
 * Take over a root's descriptor. uid and gid: the container's root. mounts: the container's mountinfo, the
 * other the host's; both are only borrowed. live: NVH_CREATED and so on. Without a recorder steps are kept.
 */
struct nvh_root *nvh_root_open(int fd, uint32_t uid, uint32_t gid, const char *mounts, size_t mounts_size,
			       const char *host_mounts, size_t host_size, int live, nvh_recorder recorder, void *context);
void nvh_root_close(struct nvh_root *root);
const struct nvh_refusal *nvh_root_refusal(struct nvh_root *root);

/* Make what is missing of the directory of a file that something else will write. */
int nvh_root_parent(struct nvh_root *root, const char *path);
/* Move a detached mount to its place, which is made if it is missing: 1; the same file is there: 0. */
int nvh_root_attach(struct nvh_root *root, const char *path, int source);
/* Cover a directory that exists with a mount, whose content counts as the container's own. */
int nvh_root_cover(struct nvh_root *root, const char *path, int source);
/* Make path a link to target: 1; it is already: 0. Another link is replaced. */
int nvh_root_link(struct nvh_root *root, const char *path, const char *target);
/* Replace a regular file, or make it, in one step. A container that runs keeps the file's mode. */
int nvh_root_write(struct nvh_root *root, const char *path, const void *data, size_t size, uint32_t mode);
/* Tell the recorder that something else will replace a file. */
int nvh_root_announce(struct nvh_root *root, const char *path);
/* Count a mount, by a descriptor, as the container's own unless it is the host's, too: its files go with it. */
int nvh_root_adopt(struct nvh_root *root, int mount);

/* Take a step back; 0 also where nothing is left of it. */
int nvh_root_undo(struct nvh_root *root, const struct nvh_step *step);
/* Take back what the root's own list has, newest first. */
void nvh_root_undo_all(struct nvh_root *root);
/* Close the directories that are kept open: some may have been removed. */
void nvh_root_forget(struct nvh_root *root);
/* Unmount whatever is mounted on a path itself. */
int nvh_root_unmount(struct nvh_root *root, const char *path);
/* Remove what a killed process left beside a file it was replacing. */
void nvh_root_tidy(struct nvh_root *root, const char *path, int writer);

/* Make name a regular file with these bytes, mode and owner, in one step; nothing is changed on failure. */
int nvh_replace_file(int dirfd, const char *name, const void *data, size_t size, uint32_t mode, uint32_t uid, uint32_t gid);
/* Open a path inside a root without making anything, links followed inside it. */
int nvh_in_root(int root, const char *path, uint64_t flags);
/* cdef end */

/* Our /proc/self/fd: in the container's namespace /proc may be anything. */
int nvh_root_fds(const struct nvh_root *root);
/*
 * Open what a descriptor of O_PATH is for reading, by its number in /proc/self/fd, if it is a regular file and
 * none of the kernel's: opening a device does things, reading some of /proc waits for ever.
 */
int nvh_open_regular(int fds, int handle, struct stat *st);
