/* nvidia-cuda-mps-control of the simulated driver: the control daemon and its client, no server.
 *
 * -d starts a daemon in the background, -f in the foreground; without either, commands are read from
 * standard input and sent to the daemon of CUDA_MPS_PIPE_DIRECTORY. One daemon for each directory.
 * What it was started with stands in control.log in CUDA_MPS_LOG_DIRECTORY.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_DEVICES 64
#define PID_FILE "nvidia-cuda-mps-control.pid"

static double percentage = 100;
static char limits[MAX_DEVICES][24];
static char log_path[PATH_MAX];

static const char *directory(const char *variable, const char *usual) {
    const char *value = getenv(variable);
    return value && *value ? value : usual;
}

/* Relative, in the pipe directory: a socket's path holds 107 bytes. */
static const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "control"};

static void note(const char *format, const char *text) {
    FILE *file = fopen(log_path, "ae");
    if (!file)
        return;
    fprintf(file, format, text);
    fclose(file);
}

static void note_start(void) {
    struct stat shm = {0};
    char text[64];
    note("Start%s\n", "");
    note("CUDA_VISIBLE_DEVICES=%s\n", directory("CUDA_VISIBLE_DEVICES", ""));
    stat("/dev/shm", &shm);
    snprintf(text, sizeof text, "%u:%u:%llu", major(shm.st_dev), minor(shm.st_dev),
             (unsigned long long)shm.st_ino);
    note("shm=%s\n", text);
}

/* Carry out a command; returns whether the daemon goes on. */
static int command(const char *line, FILE *answer) {
    double number;
    unsigned device;
    char text[24];
    note("%s\n", line);
    if (!strncmp(line, "quit", 4))
        return 0;
    if (!strcmp(line, "get_default_active_thread_percentage")) {
        fprintf(answer, "%.1f\n", percentage);
    } else if (sscanf(line, "set_default_active_thread_percentage %lf", &number) == 1) {
        if (number > 0 && number <= 100)
            fprintf(answer, "%.1f\n", percentage = number);
        else
            fputs("Active thread percentage must be between 0 and 100\n", answer);
    } else if (sscanf(line, "set_default_device_pinned_mem_limit %u %23s", &device, text) == 2) {
        if (device < MAX_DEVICES)
            strcpy(limits[device], text);
    } else if (sscanf(line, "get_default_device_pinned_mem_limit %u", &device) == 1) {
        if (device < MAX_DEVICES)
            fprintf(answer, "%s\n", limits[device]);
    } else if (strcmp(line, "get_server_list")) {
        fprintf(answer, "Unknown command: %s\n", line);
    }
    return 1;
}

static int serve(int listening) {
    for (int going = 1; going;) {
        int peer = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        if (peer < 0)
            continue;
        FILE *in = fdopen(peer, "r"), *out = fdopen(dup(peer), "w");
        char line[256];
        while (going && in && out && fgets(line, sizeof line, in)) {
            line[strcspn(line, "\n")] = '\0';
            going = !*line || command(line, out);
        }
        if (out)
            fclose(out);
        if (in)
            fclose(in);
    }
    note("Exit%s\n", "");
    unlink("control");
    unlink(PID_FILE);
    return 0;
}

static int run(int background) {
    int lock = open("control_lock", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock < 0) {
        perror("Cannot open control_lock");
        return 1;
    }
    if (flock(lock, LOCK_EX | LOCK_NB)) {
        fputs("An instance of this daemon is already running\n", stderr);
        return 1;
    }
    unlink("control");
    int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listening, (const struct sockaddr *)&address, sizeof address) ||
        listen(listening, 8)) {
        perror("Cannot make control");
        return 1;
    }
    chmod("control", 0666);
    if (background && daemon(1, 0)) {
        perror("Cannot go to the background");
        return 1;
    }
    FILE *file = fopen(PID_FILE, "we");
    if (file) {
        fprintf(file, "%d\n", (int)getpid());
        fclose(file);
    }
    signal(SIGPIPE, SIG_IGN);
    note_start();
    return serve(listening);
}

static int talk(void) {
    char buffer[4096];
    ssize_t length;
    int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(peer, (const struct sockaddr *)&address, sizeof address)) {
        fputs("Cannot find MPS control daemon process\n", stderr);
        return 1;
    }
    while ((length = read(0, buffer, sizeof buffer)) > 0)
        if (send(peer, buffer, (size_t)length, MSG_NOSIGNAL) != length)
            break;
    shutdown(peer, SHUT_WR);
    while ((length = read(peer, buffer, sizeof buffer)) > 0)
        if (write(1, buffer, (size_t)length) != length)
            return 1;
    return 0;
}

int main(int argc, char **argv) {
    const char *pipes = directory("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps");
    const char *option = argc > 1 ? argv[1] : "";
    if (argc > 2 || (argc == 2 && strcmp(option, "-d") && strcmp(option, "-f"))) {
        fputs("usage: nvidia-cuda-mps-control [-d|-f]\n", stderr);
        return 2;
    }
    snprintf(log_path, sizeof log_path, "%s/control.log",
             directory("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"));
    if (argc == 2)
        mkdir(pipes, 0755);
    if (chdir(pipes)) {
        fprintf(stderr, "Cannot use the pipe directory %s: %s\n", pipes, strerror(errno));
        return 1;
    }
    return argc == 2 ? run(option[1] == 'd') : talk();
}
