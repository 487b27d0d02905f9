/* Finding instances and profiles in the state file; the files of their capabilities, in the machine's own tree. */
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "mig.h"
#include "sim.h"

sim_gpu_instance *sim_find_gi(sim_device *device, uint32_t serial)
{
    FOR_LIVE(gi, device->gpu_instances)
        if (gi->serial == serial)
            return gi;
    return 0;
}

sim_compute_instance *sim_find_ci(sim_device *device, uint32_t serial)
{
    FOR_LIVE(ci, device->compute_instances)
        if (ci->serial == serial)
            return ci;
    return 0;
}

uint32_t sim_ci_share(const sim_device *device, const sim_compute_instance *ci, uint32_t whole)
{
    if (!ci || !device->multiprocessors)
        return whole;
    const sim_gpu_instance *gi = sim_find_gi((sim_device *)device, ci->owner);
    if (!gi)
        return whole;
    const sim_profile *profile = &device->profiles[gi->profile];
    return whole / device->multiprocessors * (profile->multiprocessors * ci->slices / profile->compute_slices);
}

const sim_profile *sim_profile_by_id(const sim_device *device, unsigned id)
{
    for (uint32_t i = 0; i < device->profile_count; i++)
        if (device->profiles[i].id == id)
            return &device->profiles[i];
    return 0;
}

uint32_t sim_users(const sim_device *device, const sim_gpu_instance *gi, const sim_compute_instance *ci)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < device->process_count && i < SIM_PROCESSES; i++)
        count += device->processes[i].gpu_instance == gi->id && (!ci || device->processes[i].compute_instance == ci->id);
    return count;
}

/* The kernel numbers every instance that could be, and lists the numbers in mig-minors. */
enum { FIRST_MINOR = 3, GPU_INSTANCES = 15, MINORS_OF_ONE = 9, ROOM = 128 };

static unsigned capability_minor(const sim_device *device, const sim_gpu_instance *gi, const sim_compute_instance *ci)
{
    return FIRST_MINOR + MINORS_OF_ONE * (GPU_INSTANCES * device->minor + gi->id) + (ci ? 1 + ci->id : 0);
}

/* The capability's file, or the folders that it is in, and its node. */
static void places(const sim_device *device, const sim_gpu_instance *gi, const sim_compute_instance *ci, char *file, char *node)
{
    char inner[32] = "";
    if (ci)
        snprintf(inner, sizeof inner, "/ci%u", ci->id);
    snprintf(file, PATH_MAX + ROOM, "%s/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u%s", sim_folder(), device->minor, gi->id, inner);
    snprintf(node, PATH_MAX + ROOM, "%s/dev/nvidia-caps/nvidia-cap%u", sim_folder(), capability_minor(device, gi, ci));
}

/* A folder and those above it that are missing. */
static void make_folders(const char *path)
{
    char part[PATH_MAX + ROOM];
    for (size_t i = 1; path[i - 1] && i < sizeof part; i++) {
        part[i - 1] = path[i - 1];
        part[i] = 0;
        if (path[i] == '/' || !path[i])
            mkdir(part, 0755);
    }
}

/* As harmless as /dev/null, of which it is a copy, where the machine's other nodes are real; else a plain file. */
static void make_node(const char *path)
{
    char control[PATH_MAX + ROOM], above[PATH_MAX + ROOM];
    struct stat status;
    snprintf(above, sizeof above, "%s/dev/nvidia-caps", sim_folder());
    make_folders(above);
    snprintf(control, sizeof control, "%s/dev/nvidiactl", sim_folder());
    int real = stat(control, &status) == 0 && S_ISCHR(status.st_mode);
    if (mknod(path, (real ? S_IFCHR : S_IFREG) | 0666, makedev(1, 3)) == 0)
        chmod(path, 0666);
}

void sim_show_capability(const sim_device *device, const sim_gpu_instance *gi, const sim_compute_instance *ci)
{
    char file[PATH_MAX + ROOM], node[PATH_MAX + ROOM], access[PATH_MAX + 2 * ROOM];
    places(device, gi, ci, file, node);
    make_folders(file);
    snprintf(access, sizeof access, "%s/access", file);
    FILE *out = fopen(access, "w");
    if (out) {
        fprintf(out, "DeviceFileMinor: %u\nDeviceFileMode: 256\nDeviceFileModify: 1\n", capability_minor(device, gi, ci));
        fclose(out);
    }
    if (!sim_state->nodes_withheld)
        make_node(node);
}

void sim_hide_capability(const sim_device *device, const sim_gpu_instance *gi, const sim_compute_instance *ci)
{
    char file[PATH_MAX + ROOM], node[PATH_MAX + ROOM], access[PATH_MAX + 2 * ROOM];
    places(device, gi, ci, file, node);
    snprintf(access, sizeof access, "%s/access", file);
    unlink(access);
    rmdir(file);
    unlink(node);
}
