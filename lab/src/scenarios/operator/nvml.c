/* Stand-in for libnvidia-ml, for tests alone: one device without properties, because the simulated
 * GPU cannot be initialised by the real library. The real nvidia-smi prints it and ends with 0.
 * VERSION comes from the compiler's command line. */
#include <stdio.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default"))) int

static char device, event;

static int say(char *to, unsigned size, const char *text)
{
    snprintf(to, size, "%s", text);
    return 0;
}

PUBLIC nvmlInit_v2(void) { return 0; }
PUBLIC nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
PUBLIC nvmlShutdown(void) { return 0; }
PUBLIC nvmlSystemGetDriverVersion(char *to, unsigned size) { return say(to, size, VERSION); }
PUBLIC nvmlSystemGetCudaDriverVersion(int *version) { *version = 12020; return 0; }
PUBLIC nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
PUBLIC nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to) { (void)index; *to = &device; return 0; }
PUBLIC nvmlDeviceGetIndex(void *of, unsigned *index) { (void)of; *index = 0; return 0; }
PUBLIC nvmlDeviceGetName(void *of, char *to, unsigned size) { (void)of; return say(to, size, "stand-in"); }
PUBLIC nvmlEventSetCreate(void **to) { *to = &event; return 0; }

/* nvmlPciInfo_t: a bus id of 16 characters, five numbers, a bus id of 32 characters. */
PUBLIC nvmlDeviceGetPciInfo_v3(void *of, char *to)
{
    (void)of;
    memset(to, 0, 68);
    strcpy(to, "0000:00:05.0");
    strcpy(to + 36, "00000000:00:05.0");
    return 0;
}

/* Internal functions that nvidia-smi gets as a table: its size in bytes, then pointers. */
static long done(void) { return 0; }
static const void *table[65];

PUBLIC nvmlInternalGetExportTable(const void **to, const void *id)
{
    (void)id;
    table[0] = (const void *)sizeof table;
    for (unsigned at = 1; at < 65; at++)
        table[at] = (const void *)done;
    *to = table;
    return 0;
}
