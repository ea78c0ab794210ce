#define _GNU_SOURCE
#include "root.h"
#include "syscalls.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HANDLE (O_PATH | O_NOFOLLOW | O_CLOEXEC)
#define PRIVATE (1 << 18) /* MS_PRIVATE */
#define RACE_RETRIES 64
#define OLD_LIMIT ((size_t)16 << 20)
#define OWN_MOUNTS 8
#define MODE 07777
#define NOBODY ((uint32_t)-1)

/* An open directory of the container. */
struct directory {
	struct directory *next;
	char *path;
	int fd, empty; /* empty: the first file that was made here; later ones on this mount are links to it */
	int64_t mount;
	bool ours;   /* on the root's own mount, if that is what it seems, or one of nvhook's */
	bool volume; /* on a mount of something the host has, too: what is made there is made on the host */
	bool checked; /* not one of the kernel's own file systems */
};

struct nvh_root {
	int fd, fds; /* fds: /proc/self/fd, held because in the container's namespace /proc may be anything */
	uint32_t uid, gid, own_uid, own_gid;
	const char *mounts, *host_mounts;
	size_t mounts_size, host_size;
	bool live, doubtful; /* doubtful: what it has for a root may be a volume of the host */
	nvh_recorder recorder;
	void *context;
	struct directory *directories;
	int64_t own[OWN_MOUNTS];
	int own_count;
	struct nvh_step *steps;
	size_t count, room;
	struct nvh_refusal refusal;
	char refused_path[PATH_MAX];
};

/* ---- opening and closing ---- */

static bool is_made_for_it(const struct nvh_root *root);

struct nvh_root *nvh_root_open(int fd, uint32_t uid, uint32_t gid, const char *mounts, size_t mounts_size,
			       const char *host_mounts, size_t host_size, int live, nvh_recorder recorder, void *context)
{
	struct nvh_root *root = calloc(1, sizeof *root);
	if (!root)
		return NULL;
	*root = (struct nvh_root){ .fd = fd, .fds = open("/proc/self/fd", O_DIRECTORY | HANDLE), .uid = uid, .gid = gid, .own_uid = geteuid(), .own_gid = getegid(),
				   .mounts = mounts, .mounts_size = mounts_size, .host_mounts = host_mounts,
				   .host_size = host_size, .live = live != NVH_CREATED, .recorder = recorder, .context = context };
	root->own[root->own_count++] = nvh_mount_id(fd);
	root->doubtful = live == NVH_CONFINED && !is_made_for_it(root);
	return root;
}

static void free_step(struct nvh_step *step)
{
	free((char *)step->path);
	free((char *)step->link);
	free((char *)step->old_link);
	free((char *)step->old_data);
}

void nvh_root_forget(struct nvh_root *root)
{
	for (struct directory *each = root->directories, *next; each; each = next) {
		next = each->next;
		close(each->fd);
		if (each->empty >= 0)
			close(each->empty);
		free(each->path);
		free(each);
	}
	root->directories = NULL;
}

void nvh_root_close(struct nvh_root *root)
{
	nvh_root_forget(root);
	for (size_t i = 0; i < root->count; i++)
		free_step(&root->steps[i]);
	free(root->steps);
	close(root->fd);
	close(root->fds);
	free(root);
}

const struct nvh_refusal *nvh_root_refusal(struct nvh_root *root) { return &root->refusal; }

/* ---- steps ---- */

/* Note what is done, for the text of an error; returns the error. */
static int refuse(struct nvh_root *root, int error, const char *what, const char *path)
{
	root->refusal.what = what;
	snprintf(root->refused_path, sizeof root->refused_path, "%s", path);
	root->refusal.path = root->refused_path;
	return error;
}

static char *copy(const char *text) { return text ? strdup(text) : NULL; }

/* Tell the recorder of a step that is about to be taken. Old bytes are its own from then on. */
static int announce(struct nvh_root *root, struct nvh_step step)
{
	if (root->recorder) {
		int error = root->recorder(root->context, &step);
		free((char *)step.old_data);
		return error < 0 ? refuse(root, NVH_STOPPED, "record", step.path) : 0;
	}
	if (root->count == root->room) {
		size_t room = root->room ? root->room * 2 : 64;
		struct nvh_step *more = realloc(root->steps, room * sizeof *more);
		if (!more) {
			free((char *)step.old_data);
			return refuse(root, -ENOMEM, "record", step.path);
		}
		root->steps = more;
		root->room = room;
	}
	struct nvh_step own = step;
	own.data = NULL;
	own.path = copy(step.path);
	own.link = copy(step.link);
	own.old_link = copy(step.old_link);
	if (!own.path || (step.link && !own.link) || (step.old_link && !own.old_link)) {
		free_step(&own); /* the old bytes, too */
		return refuse(root, -ENOMEM, "record", step.path);
	}
	root->steps[root->count++] = own;
	return 0;
}

void nvh_root_undo_all(struct nvh_root *root)
{
	while (root->count) {
		struct nvh_step *step = &root->steps[--root->count];
		nvh_root_undo(root, step); /* what is in use or has gone stays as it is */
		free_step(step);
	}
}

/* ---- directories ---- */

int nvh_in_root(int root, const char *path, uint64_t flags)
{
	/* EAGAIN: a rename raced with ".." or a link; a container could do that for ever. */
	int fd = -EAGAIN;
	for (int i = 0; fd == -EAGAIN && i < RACE_RETRIES; i++)
		fd = nvh_openat2(root, path, flags, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
	return fd == -EAGAIN ? NVH_KEEPS_CHANGING : fd;
}

/* Is it one of the kernel's interfaces? A link of the image may lead there, a mount or a file never. */
static bool is_kernel_file(int fd, int64_t *magic)
{
	static const uint32_t magics[] = { 0x9FA0,     0x62656572, 0x27E0EB,   0x63677270, 0xCAFE4A11, 0x64626720,
					   0x74726163, 0x73636673, 0x62656570, 0xDE5E81E4, 0x1CD1 };
	*magic = nvh_filesystem_magic(fd);
	for (size_t i = 0; i < sizeof magics / sizeof *magics; i++)
		if (magics[i] == *magic)
			return true;
	return *magic < 0;
}

static int refuse_kernel_files(struct nvh_root *root, int fd, const char *path)
{
	if (!is_kernel_file(fd, &root->refusal.magic))
		return 0;
	int error = root->refusal.magic < 0 ? (int)root->refusal.magic : NVH_KERNEL_FILES;
	return refuse(root, error, error == NVH_KERNEL_FILES ? "open directory" : "look at", path);
}

static bool is_own(const struct nvh_root *root, int64_t mount)
{
	for (int i = 0; i < root->own_count; i++)
		if (root->own[i] == mount)
			return true;
	return false;
}

/* The line of a mount in the container's mountinfo. */
static const char *mount_line(const struct nvh_root *root, int64_t mount, size_t *length)
{
	char start[24];
	size_t size = (size_t)snprintf(start, sizeof start, "%lld ", (long long)mount);
	const char *at = root->mounts, *end = root->mounts + root->mounts_size;
	while (at < end) {
		const char *line_end = memchr(at, '\n', (size_t)(end - at));
		if (!line_end)
			line_end = end;
		if ((size_t)(line_end - at) > size && memcmp(at, start, size) == 0) {
			*length = (size_t)(line_end - at);
			return at;
		}
		at = line_end + 1;
	}
	return NULL;
}

/*
 * Does the host, too, have the file system mounted (unlike the container's own tmpfs)? By the number in
 * mountinfo, because btrfs gives its files another st_dev. A mount that is not known counts as the host's.
 */
static bool is_of_the_host(const struct nvh_root *root, int64_t mount)
{
	size_t length;
	const char *line = mount_line(root, mount, &length), *end = line + length;
	if (!line)
		return true;
	const char *device = memchr(line, ' ', length);
	device = device ? memchr(device + 1, ' ', (size_t)(end - device - 1)) : NULL;
	const char *after = device ? memchr(device + 1, ' ', (size_t)(end - device - 1)) : NULL;
	/* Only what is made for a container is; of anything else there may be mounts that are not seen here. */
	if (!memmem(line, length, " - tmpfs ", 9) && !memmem(line, length, " - overlay ", 11))
		return true;
	return !after || memmem(root->host_mounts, root->host_size, device, (size_t)(after + 1 - device));
}

/* Do mounts on this one appear on others? */
static bool is_shared(const struct nvh_root *root, int64_t mount)
{
	size_t length;
	const char *line = mount_line(root, mount, &length);
	return line && memmem(line, length, " shared:", 8);
}

int nvh_root_adopt(struct nvh_root *root, int mount)
{
	size_t length;
	int64_t id = nvh_mount_id(mount);
	if (id < 0 || root->own_count == OWN_MOUNTS)
		return id < 0 ? (int)id : -ENOMEM;
	if (!mount_line(root, id, &length) || !is_of_the_host(root, id)) /* new, or proven not to be the host's */
		root->own[root->own_count++] = id;
	return 0;
}

/*
 * Is the root's mount of a file system that was made for the container? Who is privileged in a user namespace
 * may put any other in its place (pivot_root), a volume that is read-only for it, too.
 */
static bool is_made_for_it(const struct nvh_root *root)
{
	size_t length;
	struct stat st, host;
	const char *line = mount_line(root, root->own[0], &length);
	if (!line || !memmem(line, length, " - overlay ", 11))
		return line && !is_of_the_host(root, root->own[0]);
	/* All of it, and not what the host itself runs on. */
	const char *field = line;
	for (int i = 0; i < 3 && field; i++) {
		const char *blank = memchr(field, ' ', length - (size_t)(field - line));
		field = blank ? blank + 1 : NULL;
	}
	return field && memcmp(field, "/ ", 2) == 0 && fstat(root->fd, &st) == 0 && stat("/", &host) == 0 &&
	       st.st_dev != host.st_dev;
}

static int make_directory(struct nvh_root *root, const char *path);

static struct directory *known(const struct nvh_root *root, const char *path, size_t length)
{
	for (struct directory *each = root->directories; each; each = each->next)
		if (strncmp(each->path, path, length) == 0 && each->path[length] == '\0')
			return each;
	return NULL;
}

/* Open a directory; make: with what is missing of it. The result stays open for the next. */
static int open_directory(struct nvh_root *root, const char *path, size_t length, bool make, struct directory **out)
{
	int error = 0;
	if ((*out = known(root, path, length))) {
		if (make && !(*out)->checked && !(error = refuse_kernel_files(root, (*out)->fd, (*out)->path)))
			(*out)->checked = true;
		return error;
	}
	struct directory *new = calloc(1, sizeof *new);
	char *name = strndup(path, length);
	if (!new || !name) {
		free(new);
		free(name);
		return refuse(root, -ENOMEM, "open directory", "/");
	}
	*new = (struct directory){ .path = name, .fd = nvh_in_root(root->fd, *name ? name : "/", O_PATH | O_DIRECTORY),
				   .empty = -1 };
	if (new->fd == -ENOENT && make)
		new->fd = make_directory(root, name);
	else if (new->fd < 0)
		refuse(root, new->fd, "open directory", name);
	error = new->fd < 0 ? new->fd : make ? refuse_kernel_files(root, new->fd, name) : 0;
	if (!error && (new->mount = nvh_mount_id(new->fd)) < 0)
		error = refuse(root, (int)new->mount, "open directory", name);
	bool doubtful = root->doubtful && new->mount == root->own[0];
	new->ours = is_own(root, new->mount) && !doubtful;
	new->volume = !new->ours && !doubtful && is_of_the_host(root, new->mount);
	new->checked = make;
	if (error) {
		if (new->fd >= 0)
			close(new->fd);
		free(name);
		free(new);
		return error;
	}
	new->next = root->directories; /* only now: others may have been added meanwhile */
	*out = root->directories = new;
	return 0;
}

/* The directory of a path and the path's last component. */
static int parent_of(struct nvh_root *root, const char *path, bool make, struct directory **parent, const char **name)
{
	const char *slash = strrchr(path, '/');
	if (*path != '/' || !slash[1] || strcmp(slash, "/.") == 0 || strcmp(slash, "/..") == 0)
		return refuse(root, NVH_NO_PATH, "use", path);
	*name = slash + 1;
	return open_directory(root, path, (size_t)(slash - path), make, parent);
}

/* ---- making things with the rights of the container's root ---- */

struct making {
	int kind;
	const char *name, *text;
	const void *data;
	size_t size;
	uint32_t mode, uid, gid;
	int empty;
	bool remove, replace;
};

static void temporary_name(char *out, size_t size, int writer) { snprintf(out, size, ".nvhook-%d", writer); }

static int replace_link(int at, const char *name, const char *target)
{
	char temporary[32];
	temporary_name(temporary, sizeof temporary, getpid());
	unlinkat(at, temporary, 0); /* of a killed process of this number */
	if (symlinkat(target, at, temporary) < 0)
		return -errno;
	if (renameat(at, temporary, at, name) == 0)
		return 0;
	int error = -errno;
	unlinkat(at, temporary, 0);
	return error;
}

int nvh_replace_file(int at, const char *name, const void *data, size_t size, uint32_t mode, uint32_t uid, uint32_t gid)
{
	char temporary[32];
	temporary_name(temporary, sizeof temporary, getpid());
	unlinkat(at, temporary, 0);
	int fd = openat(at, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & MODE);
	if (fd < 0)
		return -errno;
	int error = 0;
	if ((uid != NOBODY && fchown(fd, uid, gid) < 0) || fchmod(fd, mode & MODE) < 0)
		error = -errno;
	if (!error)
		error = write_all(fd, data, size);
	if (!error && renameat(at, temporary, at, name) < 0)
		error = -errno;
	close(fd);
	if (error)
		unlinkat(at, temporary, 0);
	return error;
}

static int make_at(int at, const struct making *m)
{
	int done;
	if (m->remove)
		done = unlinkat(at, m->name, m->kind == NVH_DIRECTORY ? AT_REMOVEDIR : 0);
	else if (m->kind == NVH_DIRECTORY)
		done = mkdirat(at, m->name, 0755);
	else if (m->kind == NVH_LINK && !m->replace)
		done = symlinkat(m->text, at, m->name);
	else if (m->kind == NVH_LINK)
		return replace_link(at, m->name, m->text);
	else if (m->kind == NVH_CONTENT)
		return nvh_replace_file(at, m->name, m->data, m->size, m->mode, m->uid, m->gid);
	else
		/*
		 * A link to an empty file that was made before costs a tenth of a new inode, of which there are
		 * thirty. It fails on another file system and in a user namespace.
		 */
		done = m->empty >= 0 && linkat(m->empty, "", at, m->name, AT_EMPTY_PATH) == 0
			       ? 0
			       : mknodat(at, m->name, S_IFREG | 0644, 0);
	return done < 0 ? -errno : 0;
}

/*
 * Host root can't create in a user namespace's own tmpfs (EOVERFLOW), and the container's root can't create
 * in an image that belongs to host root (EACCES): there, and only on the root's own mount and nvhook's,
 * never on a volume, host root's rights are used.
 */
static int make_as_owner(struct nvh_root *root, int at, bool ours, const struct making *m)
{
	if (root->uid == root->own_uid && root->gid == root->own_gid)
		return make_at(at, m);
	int taken = nvh_setfsids(root->uid, root->gid);
	int error = taken < 0 ? taken : make_at(at, m);
	int back = nvh_setfsids(root->own_uid, root->own_gid);
	if (taken < 0 || back < 0)
		return taken < 0 ? taken : back;
	if (ours && (error == -EACCES || error == -EPERM || error == -EOVERFLOW))
		return make_at(at, m);
	return error;
}

/*
 * In a container that runs, a directory that is mounted read-only is changed through a detached, writable
 * copy of it: the same file system, without the container ever seeing a mount it could write to. That is
 * done on the root's own mount and the container's own tmpfs, never on a volume of the host.
 */
static int make(struct nvh_root *root, const struct directory *parent, const struct making *m)
{
	int error = make_as_owner(root, parent->fd, parent->ours, m);
	if (error != -EROFS || !root->live || parent->volume || (!parent->ours && parent->mount == root->own[0]))
		return error;
	int writable = nvh_clone_directory(parent->fd, MOUNT_ATTR_RDONLY, PRIVATE);
	if (writable < 0)
		return writable;
	error = make_as_owner(root, writable, parent->ours, m);
	close(writable);
	return error;
}

static int make_directory(struct nvh_root *root, const char *path)
{
	struct directory *parent;
	const char *name;
	int error = parent_of(root, path, true, &parent, &name);
	if (error)
		return error;
	if (parent->volume)
		return refuse(root, NVH_VOLUME, "create directory", path);
	error = announce(root, (struct nvh_step){ .kind = NVH_DIRECTORY, .path = path });
	if (error)
		return error;
	error = make(root, parent, &(struct making){ .kind = NVH_DIRECTORY, .name = name });
	int fd = error ? error : openat(parent->fd, name, O_DIRECTORY | HANDLE);
	return fd >= 0 ? fd : refuse(root, error ? error : -errno, "create directory", path);
}

int nvh_root_parent(struct nvh_root *root, const char *path)
{
	struct directory *parent;
	const char *name;
	int error = parent_of(root, path, true, &parent, &name);
	return !error && parent->volume ? refuse(root, NVH_VOLUME, "write", path) : error;
}

/* ---- mounts ---- */

/* May one thing be mounted over another? A file over a file or a socket, a node over a file or a device. */
static bool may_shadow(mode_t source, mode_t there)
{
	if (S_ISDIR(source))
		return S_ISDIR(there);
	return S_ISREG(there) || (S_ISCHR(source) ? S_ISCHR(there) : S_ISSOCK(there));
}

/* Move a mount onto a descriptor, if the same file is not there. */
static int move(struct nvh_root *root, const char *path, int source, int target, const struct stat *from,
		const struct stat *there)
{
	if (from->st_dev == there->st_dev && from->st_ino == there->st_ino)
		return 0;
	if (is_shared(root, nvh_mount_id(target)))
		return refuse(root, NVH_SHARED, "mount", path);
	struct nvh_step step = { .kind = NVH_MOUNT, .path = path, .device = from->st_dev, .inode = from->st_ino };
	int error = announce(root, step);
	if (error)
		return error;
	error = nvh_move_mount(source, target);
	return error < 0 ? refuse(root, error, "mount", path) : 1;
}

/* An empty file that was made on a mount before; -1. */
static int empty_file(const struct nvh_root *root, int64_t mount)
{
	for (const struct directory *each = root->directories; each; each = each->next)
		if (each->mount == mount && each->empty >= 0)
			return each->empty;
	return -1;
}

int nvh_root_attach(struct nvh_root *root, const char *path, int source)
{
	struct directory *parent;
	const char *name;
	struct stat from, there;
	int error = parent_of(root, path, true, &parent, &name);
	if (error)
		return error;
	if (fstat(source, &from) < 0)
		return refuse(root, -errno, "create", path);
	bool directory = S_ISDIR(from.st_mode), made = false;
	int target = openat(parent->fd, name, HANDLE);
	if (target < 0 && errno == ENOENT) {
		if (parent->volume)
			return refuse(root, NVH_VOLUME, "create", path);
		struct making m = { .kind = directory ? NVH_DIRECTORY : NVH_FILE, .name = name, .empty = empty_file(root, parent->mount) };
		error = announce(root, (struct nvh_step){ .kind = m.kind, .path = path });
		if (error)
			return error;
		error = make(root, parent, &m);
		if (error && error != -EEXIST) /* the container was faster: what there is decides */
			return refuse(root, error, "create", path);
		made = !error;
		target = openat(parent->fd, name, HANDLE);
	}
	if (target < 0 || fstat(target, &there) < 0) {
		error = refuse(root, -errno, "create", path);
		if (target >= 0)
			close(target);
		return error;
	}
	if (may_shadow(from.st_mode, there.st_mode)) { /* also what was made: the container may be faster */
		error = move(root, path, source, target, &from, &there);
	} else {
		root->refusal.mode = there.st_mode;
		error = refuse(root, NVH_WRONG_TYPE, directory ? "a directory" : "a regular file", path);
	}
	if (made && !directory && error > 0 && empty_file(root, parent->mount) < 0)
		parent->empty = target;
	else
		close(target);
	return error;
}

int nvh_root_cover(struct nvh_root *root, const char *path, int source)
{
	struct stat from, there;
	int target = nvh_in_root(root->fd, path, O_PATH);
	if (target < 0)
		return refuse(root, target, "mount", path);
	int error = fstat(source, &from) < 0 || fstat(target, &there) < 0 ? -errno : 0;
	if (!error && !may_shadow(from.st_mode, there.st_mode)) {
		root->refusal.mode = there.st_mode;
		error = refuse(root, NVH_WRONG_TYPE, "a directory", path);
	}
	if (!error)
		error = move(root, path, source, target, &from, &there);
	close(target);
	int adopted = error > 0 ? nvh_root_adopt(root, source) : 0;
	return adopted < 0 ? refuse(root, adopted, "mount", path) : error;
}

/* ---- links and files ---- */

/* What a link points to, in out; -ENOENT: nothing is there; NVH_WRONG_TYPE: something else. */
static int read_link(struct nvh_root *root, int at, const char *name, const char *path, char out[PATH_MAX])
{
	ssize_t n = readlinkat(at, name, out, PATH_MAX - 1);
	if (n >= 0) {
		out[n] = '\0';
		return 0;
	}
	struct stat st;
	if (errno != EINVAL)
		return errno == ENOENT ? -ENOENT : refuse(root, -errno, "link", path);
	if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return refuse(root, -errno, "link", path);
	root->refusal.mode = st.st_mode;
	return refuse(root, NVH_WRONG_TYPE, "a symbolic link", path);
}

int nvh_root_link(struct nvh_root *root, const char *path, const char *target)
{
	struct directory *parent;
	const char *name;
	char old[PATH_MAX];
	int error = parent_of(root, path, true, &parent, &name);
	if (error)
		return error;
	int there = read_link(root, parent->fd, name, path, old);
	if (there < 0 && there != -ENOENT)
		return there;
	if (there == 0 && strcmp(old, target) == 0)
		return 0;
	if (parent->volume)
		return refuse(root, NVH_VOLUME, "link", path);
	struct nvh_step step = { .kind = NVH_LINK, .path = path, .link = target, .old_link = there == 0 ? old : NULL };
	error = announce(root, step);
	if (!error)
		error = make(root, parent, &(struct making){ .kind = NVH_LINK, .name = name, .text = target,
							   .replace = there == 0 });
	return error == NVH_STOPPED ? error : error ? refuse(root, error, "link", path) : 1;
}

int nvh_root_fds(const struct nvh_root *root) { return root->fds; }

int nvh_open_regular(int fds, int handle, struct stat *st)
{
	char number[16];
	int64_t magic;
	if (fstat(handle, st) < 0)
		return -errno;
	if (!S_ISREG(st->st_mode))
		return NVH_CHANGED;
	if (is_kernel_file(handle, &magic))
		return NVH_KERNEL_FILES;
	snprintf(number, sizeof number, "%d", handle);
	int fd = openat(fds, number, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* Tell the recorder that a file will be replaced; returns its mode, or 0 where there is none. */
static int announce_content(struct nvh_root *root, const struct directory *parent, const char *name, const char *path,
			    const void *data, size_t size)
{
	struct nvh_step step = { .kind = NVH_CONTENT, .path = path, .data = data, .size = size };
	struct stat st;
	if (fstat(parent->fd, &st) < 0)
		return refuse(root, -errno, "write", path);
	step.device = st.st_dev;
	step.inode = st.st_ino;
	bool covered = parent->ours && parent->mount != root->own[0]; /* goes with the mount that covers it */
	if (fstatat(parent->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		if (errno != ENOENT)
			return refuse(root, -errno, "write", path);
		return covered ? 0 : announce(root, step);
	}
	if (!S_ISREG(st.st_mode)) {
		root->refusal.mode = st.st_mode;
		return refuse(root, NVH_WRONG_TYPE, "a regular file", path);
	}
	if (covered)
		return (int)(st.st_mode & MODE);
	int place = openat(parent->fd, name, HANDLE);
	int fd = place < 0 ? -errno : nvh_open_regular(root->fds, place, &st);
	if (fd == NVH_KERNEL_FILES)
		root->refusal.magic = nvh_filesystem_magic(place);
	if (place >= 0)
		close(place);
	if (fd < 0)
		return refuse(root, fd, "read", path);
	step.old_data = read_descriptor(fd, OLD_LIMIT, &step.old_size);
	int reason = errno;
	close(fd);
	if (!step.old_data)
		return refuse(root, -reason, "read", path);
	step.mode = st.st_mode & MODE;
	step.uid = st.st_uid;
	step.gid = st.st_gid;
	int error = announce(root, step);
	return error ? error : (int)step.mode;
}

int nvh_root_announce(struct nvh_root *root, const char *path)
{
	struct directory *parent;
	const char *name;
	int error = parent_of(root, path, true, &parent, &name);
	if (!error && parent->volume)
		error = refuse(root, NVH_VOLUME, "write", path);
	if (!error)
		error = announce_content(root, parent, name, path, NULL, 0);
	return error < 0 ? error : 0;
}

int nvh_root_write(struct nvh_root *root, const char *path, const void *data, size_t size, uint32_t mode)
{
	struct directory *parent;
	const char *name;
	int error = parent_of(root, path, true, &parent, &name);
	if (error)
		return error;
	if (parent->volume)
		return refuse(root, NVH_VOLUME, "write", path);
	int old = announce_content(root, parent, name, path, data, size);
	if (old < 0)
		return old;
	struct making m = { .kind = NVH_CONTENT, .name = name, .data = data, .size = size, .uid = NOBODY,
			    .mode = root->live && old ? (uint32_t)old : mode };
	error = make(root, parent, &m);
	return error ? refuse(root, error, "write", path) : 0;
}

/* ---- undo ---- */

/* The descriptor of a name, if it is a mount of its own; -1. */
static int mount_at(const struct directory *parent, const char *name, struct stat *st)
{
	int fd = openat(parent->fd, name, HANDLE);
	if (fd >= 0 && fstat(fd, st) == 0 && nvh_mount_id(fd) != parent->mount)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Is what is unmounted below a mount unmounted on the host, too? */
static bool reaches_host(const struct nvh_root *root, int64_t mount)
{
	size_t length;
	const char *line = mount_line(root, mount, &length);
	const char *group = line ? memmem(line, length, " shared:", 8) : NULL;
	static const char *const kinds[] = { " shared:", " master:" };
	for (size_t i = 0; group && i < 2; i++) {
		char wanted[40];
		int digits = (int)strspn(group + 8, "0123456789");
		int n = snprintf(wanted, sizeof wanted, "%s%.*s ", kinds[i], digits, group + 8);
		if (memmem(root->host_mounts, root->host_size, wanted, (size_t)n))
			return true;
	}
	return false;
}

static int unmount(struct nvh_root *root, const struct directory *parent, const char *name)
{
	return reaches_host(root, parent->mount) ? NVH_SHARED : nvh_umount_at(parent->fd, name);
}

static int absent(int error) { return error == -ENOENT || error == -ENOTDIR ? 0 : error; }

static int undo_mount(struct nvh_root *root, const struct directory *parent, const char *name, const struct nvh_step *step)
{
	struct stat st;
	int fd = mount_at(parent, name, &st);
	if (fd < 0)
		return 0;
	close(fd);
	if (st.st_dev != step->device || st.st_ino != step->inode)
		return NVH_COVERED;
	return unmount(root, parent, name);
}

static int undo_made(struct nvh_root *root, const struct directory *parent, const char *name, int kind)
{
	struct stat st;
	if (fstatat(parent->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return absent(-errno);
	int fd = mount_at(parent, name, &st);
	if (fd >= 0)
		close(fd);
	if (parent->volume || fd >= 0)
		return NVH_MOUNTED;
	if (kind == NVH_FILE && !(S_ISREG(st.st_mode) && st.st_size == 0))
		return NVH_CHANGED;
	return absent(make(root, parent, &(struct making){ .kind = kind, .name = name, .remove = true }));
}

static int undo_link(struct nvh_root *root, const struct directory *parent, const char *name, const struct nvh_step *step)
{
	char now[PATH_MAX];
	int error = read_link(root, parent->fd, name, step->path, now);
	if (error == -ENOENT || error == NVH_WRONG_TYPE || (!error && strcmp(now, step->link) != 0))
		return 0; /* done before, or the container's own work */
	if (error)
		return error;
	if (parent->volume)
		return NVH_VOLUME;
	return absent(make(root, parent, &(struct making){ .kind = NVH_LINK, .name = name, .text = step->old_link,
							   .replace = true, .remove = !step->old_link }));
}

static int undo_content(struct nvh_root *root, const struct directory *parent, const char *name, const struct nvh_step *step)
{
	struct stat st;
	if (parent->volume)
		return NVH_VOLUME;
	if (fstat(parent->fd, &st) < 0)
		return -errno;
	if (st.st_dev != step->device || st.st_ino != step->inode) /* another directory has this name now */
		return NVH_CHANGED;
	struct making m = { .kind = NVH_CONTENT, .name = name, .data = step->old_data, .size = step->old_size,
			    .mode = step->mode, .uid = NOBODY, .remove = !step->old_data };
	if (step->uid != root->uid || step->gid != root->gid) {
		m.uid = step->uid;
		m.gid = step->gid;
	}
	int error = make(root, parent, &m);
	return m.remove ? absent(error) : error;
}

/* Open the directory of a path as it is; false where that has gone. */
static bool place(struct nvh_root *root, const char *path, struct directory **parent, const char **name)
{
	return parent_of(root, path, false, parent, name) == 0;
}

int nvh_root_undo(struct nvh_root *root, const struct nvh_step *step)
{
	struct directory *parent;
	const char *name;
	if (!place(root, step->path, &parent, &name))
		return 0;
	switch (step->kind) {
	case NVH_MOUNT:
		return undo_mount(root, parent, name, step);
	case NVH_LINK:
		return undo_link(root, parent, name, step);
	case NVH_CONTENT:
		return undo_content(root, parent, name, step);
	default:
		return undo_made(root, parent, name, step->kind);
	}
}

int nvh_root_unmount(struct nvh_root *root, const char *path)
{
	struct directory *parent;
	const char *name;
	struct stat st;
	if (!place(root, path, &parent, &name) || fstatat(parent->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	int fd = mount_at(parent, name, &st);
	if (fd < 0)
		return NVH_NOT_A_MOUNT;
	close(fd);
	return unmount(root, parent, name);
}

void nvh_root_tidy(struct nvh_root *root, const char *path, int writer)
{
	struct directory *parent;
	const char *name;
	char temporary[32];
	struct stat st;
	temporary_name(temporary, sizeof temporary, writer);
	if (!place(root, path, &parent, &name) || parent->volume ||
	    fstatat(parent->fd, temporary, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	make(root, parent, &(struct making){ .kind = NVH_FILE, .name = temporary, .remove = true });
}
