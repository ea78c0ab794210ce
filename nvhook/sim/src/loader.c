/* A bounded reader of /etc/ld.so.cache. Source: glibc, sysdeps/generic/dl-cache.h. */
#define _GNU_SOURCE
#include "loader.h"

#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_CACHE (16 << 20)
#define OLD_MAGIC "ld.so-1.7.0"
#define NEW_MAGIC "glibc-ld.so.cache1.1"

#if defined(__x86_64__)
#define ABI_FLAGS 0x0303
#define TRIPLET "x86_64-linux-gnu"
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define ABI_FLAGS 0x0a03
#define TRIPLET "aarch64-linux-gnu"
#define MACHINE EM_AARCH64
#else
#error "the simulated driver knows x86-64 and aarch64 only"
#endif

struct header {
    char magic[20];
    uint32_t count;
    uint32_t strings;
    uint32_t unused[5];
};

struct entry {
    int32_t flags;
    uint32_t key;
    uint32_t value;
    uint32_t os_version;
    uint64_t hwcap;
};

static const char *const DEFAULT_DIRECTORIES[] = {
    "/lib/" TRIPLET, "/usr/lib/" TRIPLET, "/lib64", "/usr/lib64", "/lib", "/usr/lib",
};

/* Read the whole file with a NUL behind it. Returns NULL where it is absent, odd or too large. */
static char *read_cache(size_t *size) {
    struct stat st;
    char *data = NULL;
    int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size <= MAX_CACHE)
        data = calloc(1, (size_t)st.st_size + 1);
    if (data) {
        ssize_t got = read(fd, data, (size_t)st.st_size);
        *size = got > 0 ? (size_t)got : 0;
    }
    close(fd);
    return data;
}

/* Where the new-format header starts: files may carry an old-format table in front. */
static size_t header_offset(const char *data, size_t size) {
    uint32_t count;
    if (size < 16 || memcmp(data, OLD_MAGIC, sizeof(OLD_MAGIC) - 1))
        return 0;
    memcpy(&count, data + 12, sizeof count);
    return (16 + (size_t)count * 12 + 7) & ~(size_t)7;
}

static int usable(const char *path) {
    unsigned char head[20];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, head, sizeof head);
    close(fd);
    return got == sizeof head && !memcmp(head, ELFMAG, SELFMAG) && head[EI_CLASS] == ELFCLASS64 &&
           (head[18] | head[19] << 8) == MACHINE;
}

static int search(const char *data, size_t size, const char *soname, char *path, size_t room) {
    struct header header;
    size_t base = header_offset(data, size);
    if (base > size || size - base < sizeof header)
        return 0;
    memcpy(&header, data + base, sizeof header);
    if (memcmp(header.magic, NEW_MAGIC, sizeof header.magic))
        return 0;
    if ((size - base - sizeof header) / sizeof(struct entry) < header.count)
        return 0;
    for (uint32_t i = 0; i < header.count; i++) {
        struct entry entry;
        memcpy(&entry, data + base + sizeof header + i * sizeof entry, sizeof entry);
        if (entry.flags != ABI_FLAGS || entry.key >= size - base || entry.value >= size - base)
            continue;
        /* read_cache leaves a NUL behind the file: no string runs past it. */
        if (strcmp(data + base + entry.key, soname) || !usable(data + base + entry.value))
            continue;
        int length = snprintf(path, room, "%s", data + base + entry.value);
        return length > 0 && (size_t)length < room;
    }
    return 0;
}

int loader_find(const char *soname, char *path, size_t room, const char **source) {
    size_t size = 0;
    char *data = read_cache(&size);
    int found = data && search(data, size, soname, path, room);
    free(data);
    *source = "/etc/ld.so.cache";
    if (found)
        return 1;
    *source = "default directories";
    for (size_t i = 0; i < sizeof DEFAULT_DIRECTORIES / sizeof *DEFAULT_DIRECTORIES; i++) {
        int length = snprintf(path, room, "%s/%s", DEFAULT_DIRECTORIES[i], soname);
        if (length > 0 && (size_t)length < room && usable(path))
            return 1;
    }
    return 0;
}
