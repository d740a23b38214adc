/* Preloaded into a process: at the nth matching file operation below FAULT_ROOT it kills or stops the process, or lets
   the operation fail. FAULT is "ACTION OPERATION N PATTERN": action kill, stop, EIO (once), or ENOSPC, EDQUOT or EFBIG
   (every later write and mkdir fails too); operation open (for writing), write, sync, rename, remove, mkdir or any; N
   from 1; a glob for the path relative to FAULT_ROOT, of a rename its target. A write that kills or fills the disk has
   written its first half. FAULT_LOG names a file that lists all operations, FAULT_HIT one that is made when the fault
   occurs. FAULT_RANK selects one rank. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX], list[PATH_MAX], action[16], operation[16], pattern[PATH_MAX];
static int number, seen, code, is_full;

void fault_start(void) {
    const char *fault = getenv("FAULT"), *folder = getenv("FAULT_ROOT"), *log = getenv("FAULT_LOG");
    const char *wanted = getenv("FAULT_RANK"), *rank = getenv("RANK");
    if (!folder || (wanted && (!rank || strcmp(wanted, rank)))) return;
    seen = is_full = 0;
    if (fault && sscanf(fault, "%15s %15s %d %4095s", action, operation, &number, pattern) != 4) abort();
    code = !strcmp(action, "EIO") ? EIO : !strcmp(action, "ENOSPC") ? ENOSPC : !strcmp(action, "EDQUOT") ? EDQUOT
         : !strcmp(action, "EFBIG") ? EFBIG : 0;
    strcpy(list, log ? log : "");
    strcpy(root, folder);
}

__attribute__((constructor)) static void load(void) { fault_start(); }

/* Whether this operation is the one to kill at or to fail; stops the process if that is wanted. */
static int strikes(const char *name, int folder, const char *path) {
    char full[2 * PATH_MAX] = "", link[64], line[3 * PATH_MAX];
    if (!*root) return 0;
    if (!path || (*path != '/' && folder != AT_FDCWD)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        if (syscall(SYS_readlinkat, AT_FDCWD, link, full, PATH_MAX) < 0) return 0;
    } else if (*path != '/' && !getcwd(full, PATH_MAX)) return 0;
    if (path) snprintf(full + strlen(full), PATH_MAX, "%s%s", *full ? "/" : "", path);
    size_t length = strlen(root);
    if (strncmp(full, root, length) || full[length] != '/') return 0;
    if (*list) {
        int log = syscall(SYS_openat, AT_FDCWD, list, O_WRONLY | O_CREAT | O_APPEND, 0644);
        syscall(SYS_write, log, line, snprintf(line, sizeof line, "%s %s\n", name, full + length + 1));
        syscall(SYS_close, log);
    }
    if (is_full && (*name == 'w' || *name == 'm')) return 1;
    if (!*action || (strcmp(operation, "any") && strcmp(operation, name)) || fnmatch(pattern, full + length + 1, 0)
        || __sync_add_and_fetch(&seen, 1) != number) return 0;
    is_full = code && code != EIO;
    syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, getenv("FAULT_HIT"), O_WRONLY | O_CREAT, 0644));
    if (!strcmp(action, "stop")) return kill(getpid(), SIGSTOP);
    return 1;
}

static int fails(const char *name, int folder, const char *path) {
    if (!strikes(name, folder, path)) return 0;
    if (!code) kill(getpid(), SIGKILL);
    errno = code;
    return 1;
}

static int opened(int folder, const char *path, int flags, mode_t mode) {
    if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && fails("open", folder, path)) return -1;
    return syscall(SYS_openat, folder, path, flags, mode);
}
#define MODE va_list rest; va_start(rest, flags); mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; va_end(rest)
int open(const char *path, int flags, ...) { MODE; return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE; return opened(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE; return opened(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE; return opened(folder, path, flags, mode); }

ssize_t write(int file, const void *data, size_t size) {
    int was_full = is_full;
    if (!strikes("write", file, NULL)) return syscall(SYS_write, file, data, size);
    ssize_t half = !was_full && code != EIO && size > 1 ? syscall(SYS_write, file, data, size / 2) : 0;
    if (!code) kill(getpid(), SIGKILL);
    errno = code;
    return half > 0 ? half : -1;
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    return fails("write", file, NULL) ? -1 : syscall(SYS_writev, file, parts, count);
}
ssize_t sendfile64(int to, int from, off_t *offset, size_t count) {
    return fails("write", to, NULL) ? -1 : syscall(SYS_sendfile, to, from, offset, count);
}
ssize_t sendfile(int to, int from, off_t *offset, size_t count) { return sendfile64(to, from, offset, count); }

int fsync(int file) { return fails("sync", file, NULL) ? -1 : syscall(SYS_fsync, file); }
int fdatasync(int file) { return fails("sync", file, NULL) ? -1 : syscall(SYS_fdatasync, file); }
int renameat(int from, const char *old, int to, const char *new) {
    return fails("rename", to, new) ? -1 : syscall(SYS_renameat2, from, old, to, new, 0);
}
int rename(const char *old, const char *new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }
int unlinkat(int folder, const char *path, int flags) {
    return fails("remove", folder, path) ? -1 : syscall(SYS_unlinkat, folder, path, flags);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int mkdirat(int folder, const char *path, mode_t mode) {
    return fails("mkdir", folder, path) ? -1 : syscall(SYS_mkdirat, folder, path, mode);
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
