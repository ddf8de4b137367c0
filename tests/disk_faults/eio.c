/* Runs a program on a disk that fails: `eio FOLDER KINDS FIRST LAST COUNT PROGRAM ARGS...`
 *
 * Of the calls of these kinds on files below FOLDER, the FIRST-th to the LAST-th fail with EIO (0 0: none). At the end the number of
 * calls is written to the file COUNT, and the exit code is that of the program. KINDS has letters: o open, r read, w write, s sync,
 * n rename, t stat of a path, x rename with flags, all of which fail with EINVAL, as file systems answer that do not know them. With k
 * the program is killed at the FIRST-th call instead, and with h the calls hang: they never return. SIGTERM is passed on to the program.
 *
 * The kernel asks this process about each call (seccomp user notification), so that a call fails however the program makes it. It
 * needs no privilege.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A call: where its file descriptor (fd >= 0) or its one or two paths are among its arguments. With both, the descriptor is that of the
 * folder that a path may begin at. */
struct call {
    int number;
    char kind;
    int fd, path, other_path;
};

static const struct call calls[] = {
    {SYS_openat, 'o', -1, 1, -1},       {SYS_read, 'r', 0, -1, -1},      {SYS_pread64, 'r', 0, -1, -1},
    {SYS_readv, 'r', 0, -1, -1},        {SYS_preadv, 'r', 0, -1, -1},    {SYS_write, 'w', 0, -1, -1},
    {SYS_pwrite64, 'w', 0, -1, -1},     {SYS_writev, 'w', 0, -1, -1},    {SYS_pwritev, 'w', 0, -1, -1},
    {SYS_copy_file_range, 'w', 2, -1, -1}, {SYS_fsync, 's', 0, -1, -1},  {SYS_fdatasync, 's', 0, -1, -1},
    {SYS_renameat, 'n', -1, 1, 3},      {SYS_renameat2, 'n', -1, 1, 3},  {SYS_statx, 't', 0, 1, -1},
    {SYS_newfstatat, 't', 0, 1, -1},    {SYS_renameat2, 'x', -1, 1, 3},
#ifdef SYS_open
    {SYS_open, 'o', -1, 0, -1},         {SYS_rename, 'n', -1, 0, 1},
#endif
};
enum { CALLS = sizeof calls / sizeof *calls, NOWHERE = -1 };

static void die(const char *what) {
    perror(what);
    exit(99);
}

/* Has the kernel ask about `calls` of the given kinds. Returns the descriptor by which it asks. */
static int listen_to_kernel(const char *kinds) {
    struct sock_filter filter[2 * CALLS + 2];
    unsigned short n = 0;
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < CALLS; i++) {
        if (!strchr(kinds, calls[i].kind)) continue;
        filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, 0, 1);
        filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    }
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {n, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) die("no_new_privs");
    int listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (listener < 0) die("seccomp");
    return listener;
}

/* The sender's end takes no system call that is asked about: sendmsg. */
static void send_descriptor(int to, int descriptor) {
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    if (sendmsg(to, &message, 0) != 1) die("sendmsg");
}

static int receive_descriptor(int from) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int descriptor = -1;
    if (recvmsg(from, &message, 0) != 1) die("recvmsg");
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

static int descriptor_is_below(int thread, int descriptor, const char *name_below, const char *folder) {
    char name[64], path[4096], whole[8192];
    if (descriptor == AT_FDCWD)
        snprintf(name, sizeof name, "/proc/%d/cwd", thread);
    else
        snprintf(name, sizeof name, "/proc/%d/fd/%d", thread, descriptor);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    snprintf(whole, sizeof whole, "%s%s%s", path, *name_below ? "/" : "", name_below);
    return !strncmp(whole, folder, strlen(folder));
}

/* Whether the thread's path argument is below the folder. A relative path begins at `directory`; with NOWHERE it
 * is not below. */
static int path_is_below(int thread, int directory, unsigned long address, const char *folder) {
    char name[64], path[4096] = {0};
    snprintf(name, sizeof name, "/proc/%d/mem", thread);
    int memory = open(name, O_RDONLY);
    if (memory < 0) return 0;
    for (size_t got = 0; got + 256 <= sizeof path && !memchr(path, 0, got); got += 256)
        if (pread(memory, path + got, 256, (off_t)(address + got)) <= 0) break;
    close(memory);
    path[sizeof path - 1] = 0;
    if (directory != NOWHERE && *path && *path != '/') return descriptor_is_below(thread, directory, path, folder);
    return !strncmp(path, folder, strlen(folder));
}

static int concerns(const struct seccomp_notif *asked, const char *folder) {
    for (int i = 0; i < CALLS; i++) {
        if (calls[i].number != asked->data.nr) continue;
        int thread = (int)asked->pid;
        int fd = calls[i].fd >= 0 ? (int)asked->data.args[calls[i].fd] : NOWHERE;
        if (calls[i].path < 0) return descriptor_is_below(thread, fd, "", folder);
        return path_is_below(thread, fd, asked->data.args[calls[i].path], folder) ||
               (calls[i].other_path >= 0 && path_is_below(thread, fd, asked->data.args[calls[i].other_path], folder));
    }
    return 0;
}

static volatile pid_t program;

static void pass_on(int number) {
    if (program > 0) kill(program, number);
}

int main(int argc, char **argv) {
    if (argc < 7) return fprintf(stderr, "eio FOLDER KINDS FIRST LAST COUNT PROGRAM ARGS...\n"), 99;
    const char *folder = argv[1], *kinds = argv[2];
    long first = atol(argv[3]), last = atol(argv[4]), count = 0;
    int pair[2], status = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) die("socketpair");
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        send_descriptor(pair[1], listen_to_kernel(kinds));
        execv(argv[6], argv + 6);
        die(argv[6]);
    }
    program = child;
    signal(SIGTERM, pass_on);
    int listener = receive_descriptor(pair[0]);
    for (;;) {
        struct pollfd ready = {listener, POLLIN, 0};
        if (poll(&ready, 1, 50) > 0 && ready.revents & POLLIN) {
            struct seccomp_notif asked = {0};
            struct seccomp_notif_resp answer = {0};
            if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked)) continue;
            answer.id = asked.id;
            answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
            if (concerns(&asked, folder)) {
                int fails = ++count >= first && count <= last;
                if (fails && strchr(kinds, 'k')) {
                    /* It does not come back from this call. */
                    kill(child, SIGKILL);
                    continue;
                }
                if (fails && strchr(kinds, 'h')) continue;
                int unknown = strchr(kinds, 'x') && asked.data.nr == SYS_renameat2 && asked.data.args[4];
                if (fails || unknown) answer.flags = 0, answer.error = unknown ? -EINVAL : -EIO;
            }
            ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
            continue;
        }
        if (waitpid(child, &status, WNOHANG) == child) break;
    }
    FILE *file = fopen(argv[5], "w");
    if (!file || fprintf(file, "%ld\n", count) < 0 || fclose(file)) die(argv[5]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
