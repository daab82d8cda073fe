/* Records what a process writes to the files of one directory, and what it makes durable, in the order of the calls.

   TRACED_DIRECTORY is the directory, TRACE the file with the records: kind, name, two numbers, id, bytes that follow.
     W  offset 0     bytes are written           id of this write
     D  0      0     the write of this id is durable, with the file's size and holes
     S  0      0     everything up to this id is durable in this file
     T  size   0     the file gets this size     id
     P  offset size  a hole is made              id
     R  0      0     the file is replaced by these bytes, which are durable */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 4096
#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

struct record { char kind; char name[31]; int64_t first, second, id, size; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { int is_traced, is_synchronous; char name[31]; } files[FILES];
static int64_t last_id;

static const char *name_in_directory(const char *path) {
    const char *directory = getenv("TRACED_DIRECTORY");
    size_t length = directory ? strlen(directory) : 0;
    if (!length || strncmp(path, directory, length) || path[length] != '/') return NULL;
    const char *name = path + length + 1;
    return strchr(name, '/') || !strcmp(name, "owner") || !strcmp(name, "lock.mdb") ? NULL : name;
}

static int64_t record(char kind, const char *name, int64_t first, int64_t second, int64_t id,
                      const struct iovec *parts, int count) {
    static FILE *trace;
    struct record made = {.kind = kind, .first = first, .second = second};
    strncpy(made.name, name, sizeof made.name - 1);
    for (int part = 0; part < count; part++) made.size += parts[part].iov_len;
    pthread_mutex_lock(&lock);
    if (!trace) trace = fopen(getenv("TRACE"), "ae");
    made.id = id < 0 ? ++last_id : id;
    fwrite(&made, sizeof made, 1, trace);
    for (int part = 0; part < count; part++) fwrite(parts[part].iov_base, 1, parts[part].iov_len, trace);
    fflush(trace);
    pthread_mutex_unlock(&lock);
    return made.id;
}

static int is_traced(int file) { return file >= 0 && file < FILES && files[file].is_traced; }

static void opened(int file, const char *path, int flags) {
    if (file < 0 || file >= FILES) return;
    const char *name = name_in_directory(path);
    struct stat about;
    files[file].is_traced = name && !fstat(file, &about) && S_ISREG(about.st_mode);
    if (!files[file].is_traced) return;
    files[file].is_synchronous = (flags & O_DSYNC) != 0;
    strncpy(files[file].name, name, sizeof files[file].name - 1);
    if (flags & O_TRUNC) record('T', name, 0, 0, -1, NULL, 0);
}

#define OPEN(function) \
    int function(const char *path, int flags, ...) { \
        REAL(function); va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
        int file = real(path, flags, mode); opened(file, path, flags); return file; }
OPEN(open)
OPEN(open64)

static ssize_t written(int file, int64_t id, ssize_t size) {
    if (size >= 0 && files[file].is_synchronous) record('D', files[file].name, 0, 0, id, NULL, 0);
    return size;
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    if (!is_traced(file)) return real(file, data, size, offset);
    struct iovec part = {(void *)data, size};
    int64_t id = record('W', files[file].name, offset, 0, -1, &part, 1);
    return written(file, id, real(file, data, size, offset));
}

ssize_t pwrite(int file, const void *data, size_t size, off_t offset) { return pwrite64(file, data, size, offset); }

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev);
    if (!is_traced(file)) return real(file, parts, count);
    int64_t id = record('W', files[file].name, lseek(file, 0, SEEK_CUR), 0, -1, parts, count);
    return written(file, id, real(file, parts, count));
}

ssize_t write(int file, const void *data, size_t size) {
    REAL(write);
    if (!is_traced(file)) return real(file, data, size);
    struct iovec part = {(void *)data, size};
    int64_t id = record('W', files[file].name, lseek(file, 0, SEEK_CUR), 0, -1, &part, 1);
    return written(file, id, real(file, data, size));
}

int ftruncate64(int file, off64_t size) {
    REAL(ftruncate64);
    if (is_traced(file)) record('T', files[file].name, size, 0, -1, NULL, 0);
    return real(file, size);
}

int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int fallocate(int file, int mode, off_t offset, off_t size) {
    REAL(fallocate);
    int failed = real(file, mode, offset, size);
    if (!failed && is_traced(file) && mode & 2) record('P', files[file].name, offset, size, -1, NULL, 0);
    return failed;
}

#define SYNC(function) \
    int function(int file) { \
        REAL(function); pthread_mutex_lock(&lock); int64_t through = last_id; pthread_mutex_unlock(&lock); \
        int failed = real(file); \
        if (!failed && is_traced(file)) record('S', files[file].name, 0, 0, through, NULL, 0); \
        return failed; }
SYNC(fsync)
SYNC(fdatasync)

int rename(const char *from, const char *to) {
    REAL(rename);
    int failed = real(from, to);
    const char *name = failed ? NULL : name_in_directory(to);
    FILE *file = name ? fopen(to, "re") : NULL;
    if (file) {
        struct stat about;
        fstat(fileno(file), &about);
        struct iovec part = {malloc(about.st_size), about.st_size};
        part.iov_len = fread(part.iov_base, 1, about.st_size, file);
        record('R', name, 0, 0, -1, &part, 1);
        free(part.iov_base);
        fclose(file);
    }
    return failed;
}
