/* shim.c: preloaded into a process that works on a disk tier, it writes down everything that
 * changes the storage below one folder: each write with its bytes, each change of a size or a name,
 * each barrier, and marks of the process itself between them. One mutex is held over an operation
 * and its record, so the log is one order in which all of it may have happened.
 *
 *     POWERLOSS_ROOT   the folder; other files are left alone
 *     POWERLOSS_LOG    where the records go; what is there stays
 *     POWERLOSS_END    after so many operations the process ends at once, as if it was killed
 *
 * A record is a `record` and then its two texts and its bytes. Barriers are written down but not
 * carried out: nothing is going to lose its power but the replayed states. What would change the
 * folder and is not understood here becomes a record of kind UNKNOWN, which fails the replay. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    KIND_CREATE = 1, /* text: path */
    KIND_WRITE,      /* number: O_DSYNC or O_SYNC */
    KIND_SIZE,       /* offset: the new size */
    KIND_ZERO,       /* offset, number: bytes that read as zero from now on */
    KIND_SYNC,
    KIND_RENAME, /* text, other */
    KIND_UNLINK, /* text; also of a folder */
    KIND_MKDIR,
    KIND_MARK,
    KIND_UNKNOWN
};

#define KILLED 77 /* the status of a process that ended by POWERLOSS_END */

typedef struct record {
    uint32_t kind;
    uint32_t text_bytes;
    uint32_t other_bytes;
    uint32_t pad;
    uint64_t inode;
    uint64_t offset;
    uint64_t number;
    uint64_t bytes;
} record;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_bytes;
static int log_fd = -1;
static long operations_left = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("POWERLOSS_ROOT"), *log = getenv("POWERLOSS_LOG");
    if (folder == NULL || log == NULL || strlen(folder) >= sizeof root)
        return;
    strcpy(root, folder);
    root_bytes = strlen(root);
    log_fd =
        (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (getenv("POWERLOSS_END") != NULL)
        operations_left = atol(getenv("POWERLOSS_END"));
    unsetenv("LD_PRELOAD"); /* a process that this one starts is not ours */
}

static int is_below(const char *path) {
    return log_fd >= 0 && strncmp(path, root, root_bytes) == 0 &&
           (path[root_bytes] == '/' || path[root_bytes] == '\0');
}

/* ------------------------------------------------------------------------ the log */
static void put(const void *from, size_t bytes) {
    while (bytes > 0) {
        long done = syscall(SYS_write, log_fd, from, bytes);
        if (done <= 0)
            abort();
        from = (const char *)from + done;
        bytes -= (size_t)done;
    }
}

static void emit(record head, const char *text, const char *other, const void *bytes) {
    int error = errno;
    head.text_bytes = text ? (uint32_t)strlen(text) : 0;
    head.other_bytes = other ? (uint32_t)strlen(other) : 0;
    put(&head, sizeof head);
    put(text, head.text_bytes);
    put(other, head.other_bytes);
    put(bytes, head.bytes);
    if (head.kind != KIND_MARK && --operations_left == 0)
        _exit(KILLED);
    errno = error;
}

static void emit_unknown(const char *what) {
    pthread_mutex_lock(&lock);
    emit((record){.kind = KIND_UNKNOWN}, what, NULL, NULL);
    pthread_mutex_unlock(&lock);
}

/* What a process says itself, in its place among the operations. */
void powerloss_mark(const char *text) {
    pthread_mutex_lock(&lock);
    if (log_fd >= 0)
        emit((record){.kind = KIND_MARK}, text, NULL, NULL);
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------ whose file it is */
static void path_of_fd(int fd, char *path) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(name, path, PATH_MAX - 1);
    path[bytes < 0 ? 0 : bytes] = '\0';
}

/* The inode of a file or folder below the root; 0 for all else. */
static uint64_t inode_of(int fd) {
    char path[PATH_MAX];
    struct stat about;
    int error = errno;
    uint64_t inode = 0;
    if (log_fd >= 0 && fd != log_fd && fstat(fd, &about) == 0 &&
        (S_ISREG(about.st_mode) || S_ISDIR(about.st_mode))) {
        path_of_fd(fd, path);
        if (is_below(path))
            inode = about.st_ino;
    }
    errno = error;
    return inode;
}

static int path_at(int folder, const char *name, char *path) {
    if (name[0] == '/' || folder == AT_FDCWD) {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        char above[PATH_MAX];
        path_of_fd(folder, above);
        if (snprintf(path, PATH_MAX, "%s/%s", above, name) >= PATH_MAX)
            abort();
    }
    return is_below(path);
}

/* ------------------------------------------------------------------------ opening */
static int open_below(int folder, const char *name, const char *path, int flags, mode_t mode) {
    struct stat about;
    pthread_mutex_lock(&lock);
    int was_there = lstat(path, &about) == 0;
    int fd = (int)syscall(SYS_openat, folder, name, flags, mode);
    if (fd >= 0 && (flags & O_CREAT) && !was_there && fstat(fd, &about) == 0)
        emit((record){.kind = KIND_CREATE, .inode = about.st_ino}, path, NULL, NULL);
    else if (fd >= 0 && (flags & O_TRUNC) && was_there && fstat(fd, &about) == 0)
        emit((record){.kind = KIND_SIZE, .inode = about.st_ino}, NULL, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return fd;
}

static int open_any(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    if (!path_at(folder, name, path))
        return (int)syscall(SYS_openat, folder, name, flags, mode);
    if ((flags & O_TMPFILE) == O_TMPFILE)
        emit_unknown("O_TMPFILE");
    return open_below(folder, name, path, flags, mode);
}

#define MODE_OF(flags)                                                                             \
    mode_t mode = 0;                                                                               \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                       \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode = va_arg(more, mode_t);                                                               \
        va_end(more);                                                                              \
    }

int open(const char *name, int flags, ...) {
    MODE_OF(flags)
    return open_any(AT_FDCWD, name, flags, mode);
}

int open64(const char *name, int flags, ...) {
    MODE_OF(flags)
    return open_any(AT_FDCWD, name, flags | O_LARGEFILE, mode);
}

int openat(int folder, const char *name, int flags, ...) {
    MODE_OF(flags)
    return open_any(folder, name, flags, mode);
}

int openat64(int folder, const char *name, int flags, ...) {
    MODE_OF(flags)
    return open_any(folder, name, flags | O_LARGEFILE, mode);
}

static FILE *stream_of(FILE *stream, const char *name, const char *mode) {
    if (is_below(name) && strpbrk(mode, "wa+") != NULL)
        emit_unknown("fopen");
    return stream;
}

FILE *fopen(const char *name, const char *mode) {
    return stream_of(REAL(fopen)(name, mode), name, mode);
}

FILE *fopen64(const char *name, const char *mode) {
    return stream_of(REAL(fopen64)(name, mode), name, mode);
}

/* ------------------------------------------------------------------------ bytes */
static ssize_t write_runs(int fd, const struct iovec *runs, int count, off_t offset, int flags) {
    uint64_t inode = inode_of(fd);
    int at_place = offset >= 0;
    pthread_mutex_lock(&lock);
    int status = inode ? fcntl(fd, F_GETFL) : 0;
    if (inode && !at_place)
        offset = lseek(fd, 0, status & O_APPEND ? SEEK_END : SEEK_CUR);
    ssize_t done = at_place ? syscall(SYS_pwritev2, fd, runs, count, offset, 0, flags)
                            : syscall(SYS_writev, fd, runs, count);
    if (inode && done > 0) {
        char *joined = malloc((size_t)done);
        size_t have = 0;
        for (int i = 0; i < count && have < (size_t)done; i++) {
            size_t part = runs[i].iov_len;
            part = part < (size_t)done - have ? part : (size_t)done - have;
            memcpy(joined + have, runs[i].iov_base, part);
            have += part;
        }
        /* O_SYNC holds the bit of O_DSYNC too. */
        uint64_t is_synced = (status & O_DSYNC) != 0 || (flags & (RWF_DSYNC | RWF_SYNC)) != 0;
        emit((record){.kind = KIND_WRITE,
                      .inode = inode,
                      .offset = (uint64_t)offset,
                      .number = is_synced,
                      .bytes = (uint64_t)done},
             NULL, NULL, joined);
        free(joined);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int fd, const void *from, size_t bytes) {
    struct iovec run = {(void *)from, bytes};
    if (inode_of(fd) == 0)
        return syscall(SYS_write, fd, from, bytes);
    return write_runs(fd, &run, 1, -1, 0);
}

ssize_t writev(int fd, const struct iovec *runs, int count) {
    if (inode_of(fd) == 0)
        return syscall(SYS_writev, fd, runs, count);
    return write_runs(fd, runs, count, -1, 0);
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset) {
    struct iovec run = {(void *)from, bytes};
    return write_runs(fd, &run, 1, offset, 0);
}

ssize_t pwrite64(int fd, const void *from, size_t bytes, off64_t offset) {
    return pwrite(fd, from, bytes, offset);
}

ssize_t pwritev(int fd, const struct iovec *runs, int count, off_t offset) {
    return write_runs(fd, runs, count, offset, 0);
}

ssize_t pwritev64(int fd, const struct iovec *runs, int count, off64_t offset) {
    return write_runs(fd, runs, count, offset, 0);
}

ssize_t pwritev2(int fd, const struct iovec *runs, int count, off_t offset, int flags) {
    return write_runs(fd, runs, count, offset, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *runs, int count, off64_t offset, int flags) {
    return write_runs(fd, runs, count, offset, flags);
}

/* ------------------------------------------------------------------------ sizes */
int ftruncate(int fd, off_t size) {
    uint64_t inode = inode_of(fd);
    pthread_mutex_lock(&lock);
    int result = (int)syscall(SYS_ftruncate, fd, size);
    if (inode && result == 0)
        emit((record){.kind = KIND_SIZE, .inode = inode, .offset = (uint64_t)size}, NULL, NULL,
             NULL);
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int truncate(const char *name, off_t size) {
    int fd = open(name, O_WRONLY | O_CLOEXEC);
    int result = fd < 0 ? -1 : ftruncate(fd, size);
    if (fd >= 0)
        close(fd);
    return result;
}

int truncate64(const char *name, off64_t size) { return truncate(name, size); }

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    uint64_t inode = inode_of(fd);
    struct stat about;
    pthread_mutex_lock(&lock);
    int result = (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    int is_hole = (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0;
    if (inode && result == 0 && is_hole)
        emit((record){.kind = KIND_ZERO,
                      .inode = inode,
                      .offset = (uint64_t)offset,
                      .number = (uint64_t)bytes},
             NULL, NULL, NULL);
    else if (inode && result == 0 && mode == 0 && fstat(fd, &about) == 0)
        emit((record){.kind = KIND_SIZE, .inode = inode, .offset = (uint64_t)about.st_size}, NULL,
             NULL, NULL);
    else if (inode && result == 0 && mode != FALLOC_FL_KEEP_SIZE)
        emit((record){.kind = KIND_UNKNOWN}, "fallocate", NULL, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}

int fallocate64(int fd, int mode, off64_t offset, off64_t bytes) {
    return fallocate(fd, mode, offset, bytes);
}

int posix_fallocate(int fd, off_t offset, off_t bytes) {
    return fallocate(fd, 0, offset, bytes) == 0 ? 0 : errno;
}

int posix_fallocate64(int fd, off64_t offset, off64_t bytes) {
    return posix_fallocate(fd, offset, bytes);
}

/* ------------------------------------------------------------------------ barriers */
static int sync_fd(int fd, long call) {
    uint64_t inode = inode_of(fd);
    if (inode == 0)
        return (int)syscall(call, fd);
    pthread_mutex_lock(&lock);
    emit((record){.kind = KIND_SYNC, .inode = inode}, NULL, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return 0;
}

int fsync(int fd) { return sync_fd(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_fd(fd, SYS_fdatasync); }

void sync(void) { emit_unknown("sync"); }

int syncfs(int fd) {
    emit_unknown("syncfs");
    return (int)syscall(SYS_syncfs, fd);
}

/* ------------------------------------------------------------------------ names */
static int rename_any(int folder, const char *name, int other, const char *target, unsigned flags) {
    char from[PATH_MAX], to[PATH_MAX];
    int is_ours = path_at(folder, name, from);
    is_ours |= path_at(other, target, to);
    if (is_ours && flags != 0)
        emit_unknown("renameat2 with flags");
    pthread_mutex_lock(&lock);
    int result = (int)syscall(SYS_renameat2, folder, name, other, target, flags);
    if (is_ours && result == 0)
        emit((record){.kind = KIND_RENAME}, from, to, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}

int rename(const char *name, const char *target) {
    return rename_any(AT_FDCWD, name, AT_FDCWD, target, 0);
}

int renameat(int folder, const char *name, int other, const char *target) {
    return rename_any(folder, name, other, target, 0);
}

int renameat2(int folder, const char *name, int other, const char *target, unsigned flags) {
    return rename_any(folder, name, other, target, flags);
}

int unlinkat(int folder, const char *name, int flags) {
    char path[PATH_MAX];
    int is_ours = path_at(folder, name, path);
    pthread_mutex_lock(&lock);
    int result = (int)syscall(SYS_unlinkat, folder, name, flags);
    if (is_ours && result == 0)
        emit((record){.kind = KIND_UNLINK}, path, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int remove(const char *name) {
    struct stat about;
    int is_folder = lstat(name, &about) == 0 && S_ISDIR(about.st_mode);
    return is_folder ? rmdir(name) : unlink(name);
}

int mkdirat(int folder, const char *name, mode_t mode) {
    char path[PATH_MAX];
    struct stat about;
    int is_ours = path_at(folder, name, path);
    pthread_mutex_lock(&lock);
    int result = (int)syscall(SYS_mkdirat, folder, name, mode);
    if (is_ours && result == 0 && lstat(path, &about) == 0)
        emit((record){.kind = KIND_MKDIR, .inode = about.st_ino}, path, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int linkat(int folder, const char *name, int other, const char *target, int flags) {
    char path[PATH_MAX];
    if (path_at(other, target, path))
        emit_unknown("link");
    return (int)syscall(SYS_linkat, folder, name, other, target, flags);
}

int link(const char *name, const char *target) {
    return linkat(AT_FDCWD, name, AT_FDCWD, target, 0);
}

int symlinkat(const char *target, int folder, const char *name) {
    char path[PATH_MAX];
    if (path_at(folder, name, path))
        emit_unknown("symlink");
    return (int)syscall(SYS_symlinkat, target, folder, name);
}

int symlink(const char *target, const char *name) { return symlinkat(target, AT_FDCWD, name); }

/* ------------------------------------------------------------------------ what goes round it */
/* A shared mapping that can be written leaves no trace; only LMDB's table of readers may be one. */
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE) && inode_of(fd)) {
        char path[PATH_MAX];
        path_of_fd(fd, path);
        if (strcmp(strrchr(path, '/'), "/lock.mdb") != 0)
            emit_unknown("a shared mapping for writing");
    }
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off64_t offset) {
    return mmap(at, bytes, protection, flags, fd, offset);
}

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t bytes, unsigned flags) {
    if (inode_of(out))
        emit_unknown("copy_file_range");
    return syscall(SYS_copy_file_range, in, from, out, to, bytes, flags);
}

ssize_t sendfile(int out, int in, off_t *offset, size_t bytes) {
    if (inode_of(out))
        emit_unknown("sendfile");
    return syscall(SYS_sendfile, out, in, offset, bytes);
}

ssize_t sendfile64(int out, int in, off64_t *offset, size_t bytes) {
    return sendfile(out, in, offset, bytes);
}
