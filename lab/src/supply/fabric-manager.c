/*
 * A stand-in for NVIDIA's fabric manager (nv-fabricmanager -c FILE), whose own one needs NVSwitches that answer. It
 * has the requirements of docs/operate/daemons.md, and ends without one of them: settings that keep it in the foreground,
 * CAP_SYS_ADMIN and no other capability, the nodes of the driver and of each switch that the driver has in /proc,
 * the directory of the topology files, settings and state where no container writes. It leaves a file of its state,
 * listens on its socket and ends by SIGTERM.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RUN "/run/nvidia-fabricmanager/"
/* The directories that other containers have, and those that the sockets are in. */
#define SHARED "/run/nvidia"
#define SWITCHES "/proc/driver/nvidia-nvswitch/devices"
#define CAP_SYS_ADMIN_ALONE (1ULL << 21)

static void fail(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    exit(1);
}

/* Returns the value of a setting; fails where the file has none. */
static const char *setting(const char *path, const char *key)
{
    static char values[8][4096];
    static unsigned int used;
    char line[4096];
    size_t length = strlen(key);
    char *value = NULL;
    FILE *file = fopen(path, "r");

    if (!file)
        fail("%s: %s", path, strerror(errno));
    while (fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, key, length) == 0 && line[length] == '=') {
            value = values[used++ % 8];
            strcpy(value, line + length + 1);
        }
    }
    fclose(file);
    if (!value)
        fail("%s has no %s", path, key);
    return value;
}

static unsigned long long capabilities(void)
{
    char line[256];
    unsigned long long effective = 0;
    FILE *status = fopen("/proc/self/status", "r");

    if (!status)
        fail("/proc/self/status: %s", strerror(errno));
    while (fgets(line, sizeof(line), status))
        sscanf(line, "CapEff: %llx", &effective);
    fclose(status);
    return effective;
}

static void open_node(const char *path)
{
    if (open(path, O_RDWR | O_CLOEXEC) < 0)
        fail("%s: %s", path, strerror(errno));
}

/* Opens the nodes of the switches, and returns their number. */
static int open_switches(void)
{
    struct dirent *entry;
    char path[64];
    int count = 0;
    DIR *dir = opendir(SWITCHES);

    if (!dir)
        return 0;
    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            count++;
    closedir(dir);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "/dev/nvidia-nvswitch%d", i);
        open_node(path);
    }
    if (count)
        open_node("/dev/nvidia-nvswitchctl");
    return count;
}

int main(int argc, char **argv)
{
    static const char *const in_run[] = { "UNIX_SOCKET_PATH", "FM_CMD_UNIX_SOCKET_PATH" };
    static const char *const directories[] = { "TOPOLOGY_FILE_PATH", "DATABASE_PATH" };
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const char *file, *path;
    FILE *state;
    int asked, switches, listening;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 3 || strcmp(argv[1], "-c") != 0)
        fail("needs -c FILE");
    file = argv[2];
    if (strcmp(setting(file, "DAEMONIZE"), "0") != 0)
        fail("it would go to the background");
    if (strcmp(setting(file, "LOG_FILE_NAME"), "") != 0)
        fail("it would log to a file");
    if (capabilities() != CAP_SYS_ADMIN_ALONE)
        fail("its capabilities are %llx, not CAP_SYS_ADMIN alone", capabilities());
    if (strcmp(setting(file, "FABRIC_MODE"), "0") != 0)
        fail("a setting of the template is lost");
    for (unsigned int i = 0; i < sizeof(in_run) / sizeof(*in_run); i++)
        if (strncmp(setting(file, in_run[i]), RUN, strlen(RUN)) != 0)
            fail("%s is %s, which is not in %s", in_run[i], setting(file, in_run[i]), RUN);
    /* Whoever can replace them chooses the files that are written here as root. */
    if (strncmp(file, SHARED, strlen(SHARED)) == 0)
        fail("its settings are in %s, where containers write", file);
    if (strncmp(setting(file, "STATE_FILE_NAME"), SHARED, strlen(SHARED)) == 0)
        fail("STATE_FILE_NAME is %s, where containers write", setting(file, "STATE_FILE_NAME"));
    for (unsigned int i = 0; i < sizeof(directories) / sizeof(*directories); i++)
        if (access(setting(file, directories[i]), R_OK | X_OK) < 0)
            fail("%s: %s", directories[i], strerror(errno));
    open_node("/dev/nvidiactl");
    switches = open_switches();
    state = fopen(setting(file, "STATE_FILE_NAME"), "w");
    if (!state)
        fail("%s: %s", setting(file, "STATE_FILE_NAME"), strerror(errno));
    fputs("state\n", state);
    fclose(state);
    path = setting(file, "FM_CMD_UNIX_SOCKET_PATH");
    if (strlen(path) >= sizeof(address.sun_path))
        fail("the socket's path is too long");
    strcpy(address.sun_path, path);
    listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listening < 0 || bind(listening, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(listening, 5) < 0)
        fail("%s: %s", path, strerror(errno));
    printf("listening, with %d switches\n", switches);
    while ((asked = accept(listening, NULL, NULL)) >= 0 || errno == EINTR)
        if (asked >= 0)
            close(asked);
    fail("accept: %s", strerror(errno));
}
