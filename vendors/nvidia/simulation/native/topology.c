/* How devices are connected: PCIe levels, peer access, NVLink ports, the rack's fabric. */
#include <stddef.h>
#include <string.h>

#include "sim.h"

enum { LEVEL_INTERNAL = 0, P2P_OK = 0, P2P_NOT_SUPPORTED = 5, P2P_INDEX_NVLINK = 2, P2P_INDEX_COUNT = 5 };
enum { LINK_REMOTE_SWITCH = 2, LINK_CAPABILITIES = 6, FABRIC_UNSUPPORTED = 0 };

/* Both devices of a pair call; a lost one fails the call. */
static nvmlReturn_t enter_pair(const char *symbol, nvmlDevice_t one, nvmlDevice_t two, const void *out, sim_target *a,
                               sim_target *b)
{
    nvmlReturn_t code = sim_enter_gpu(symbol, one, a);
    if (!code)
        code = sim_also(symbol, two, b);
    return !code && !out ? NVML_INVALID_ARGUMENT : code;
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t two, unsigned *level)
{
    sim_target a, b;
    nvmlReturn_t code = enter_pair(__func__, one, two, level, &a, &b);
    if (!code)
        *level = a.index == b.index ? LEVEL_INTERNAL : a.device->levels[b.index];
    return sim_end(code);
}

API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t two, int *same)
{
    sim_target a, b;
    nvmlReturn_t code = enter_pair(__func__, one, two, same, &a, &b);
    if (!code)
        *same = a.index == b.index || a.device->levels[b.index] == LEVEL_INTERNAL;
    return sim_end(code);
}

/* With no room (count 0 or no array) only the number is answered, with Success. */
API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t handle, unsigned level, unsigned *count, nvmlDevice_t *out)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_gpu(__func__, handle, &t);
    if (!code && !count)
        code = NVML_INVALID_ARGUMENT;
    unsigned found = 0;
    for (uint32_t i = 0; !code && i < sim_state->device_count; i++) {
        if (i == t.index || !sim_present(i) || t.device->levels[i] != level)
            continue;
        if (out && found < *count)
            out[found] = sim_handle(KIND_DEVICE, i, 0);
        found++;
    }
    if (!code)
        *count = out && *count < found ? *count : found;
    return sim_end(code);
}

/* A port is up when it is wired and the asymmetric fault has not taken it down. */
static int up(const sim_device *device, const sim_link *link)
{
    return link->active && !(device->asymmetric && link->last);
}

static int linked(const sim_target *a, const sim_target *b)
{
    int switched = 0, other = 0;
    for (uint32_t i = 0; i < a->device->link_count; i++) {
        const sim_link *link = &a->device->links[i];
        if (up(a->device, link) && link->remote_device == b->index)
            return 1;
        switched |= up(a->device, link) && link->remote_type == LINK_REMOTE_SWITCH;
    }
    for (uint32_t i = 0; i < b->device->link_count; i++)
        other |= up(b->device, &b->device->links[i]) && b->device->links[i].remote_type == LINK_REMOTE_SWITCH;
    return switched && other;
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t two, unsigned index, unsigned *status)
{
    sim_target a, b;
    nvmlReturn_t code = enter_pair(__func__, one, two, status, &a, &b);
    if (!code && index >= P2P_INDEX_COUNT)
        code = NVML_INVALID_ARGUMENT;
    if (code)
        return sim_end(code);
    if (index == P2P_INDEX_NVLINK)
        *status = linked(&a, &b) ? P2P_OK : P2P_NOT_SUPPORTED;
    else
        *status = a.device->p2p_status;
    return sim_end(NVML_SUCCESS);
}

/* NotSupported without NVLink, InvalidArgument above the model's ports. */
static nvmlReturn_t enter_link(const char *symbol, nvmlDevice_t handle, unsigned number, const void *out, sim_target *t,
                               const sim_link **link)
{
    nvmlReturn_t code = sim_enter_gpu(symbol, handle, t);
    if (code)
        return code;
    if (t->device->link_count == 0)
        return NVML_NOT_SUPPORTED;
    if (number >= t->device->link_count || !out)
        return NVML_INVALID_ARGUMENT;
    *link = &t->device->links[number];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned number, unsigned *active)
{
    sim_target t;
    const sim_link *link;
    nvmlReturn_t code = enter_link(__func__, handle, number, active, &t, &link);
    if (!code)
        *active = (unsigned)up(t.device, link);
    return sim_end(code);
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t handle, unsigned number, unsigned *version)
{
    sim_target t;
    const sim_link *link;
    nvmlReturn_t code = enter_link(__func__, handle, number, version, &t, &link);
    if (!code)
        *version = t.device->link_version;
    return sim_end(code);
}

/* Of the six capabilities, the SLI bridge is the one that compute links lack. */
API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t handle, unsigned number, unsigned capability, unsigned *value)
{
    sim_target t;
    const sim_link *link;
    nvmlReturn_t code = enter_link(__func__, handle, number, value, &t, &link);
    if (!code && capability >= LINK_CAPABILITIES)
        code = NVML_INVALID_ARGUMENT;
    if (!code)
        *value = (unsigned)up(t.device, link) && capability != 4;
    return sim_end(code);
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t handle, unsigned number, unsigned *type)
{
    sim_target t;
    const sim_link *link;
    nvmlReturn_t code = enter_link(__func__, handle, number, type, &t, &link);
    if (!code && !up(t.device, link))
        code = NVML_NOT_SUPPORTED;
    if (!code)
        *type = link->remote_type;
    return sim_end(code);
}

static nvmlReturn_t remote_pci(const char *symbol, nvmlDevice_t handle, unsigned number, nvmlPciInfo_t *out, size_t size)
{
    sim_target t;
    const sim_link *link;
    nvmlReturn_t code = enter_link(symbol, handle, number, out, &t, &link);
    if (!code && !up(t.device, link))
        code = NVML_NOT_SUPPORTED;
    if (code)
        return sim_end(code);
    nvmlPciInfo_t info = {
        .domain = link->remote_domain,
        .bus = link->remote_bus,
        .device = link->remote_slot,
        .pciDeviceId = link->remote_pci_device_id,
    };
    memcpy(info.busId, link->remote_bus_id, sizeof info.busId);
    memcpy(out, &info, size);
    return sim_end(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t handle, unsigned number, nvmlPciInfo_t *out)
{
    return remote_pci(__func__, handle, number, out, sizeof *out);
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t handle, unsigned number, nvmlPciInfo_t *out)
{
    return remote_pci("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, number, out, offsetof(nvmlPciInfo_t, busId));
}

/* Versions 2 and 3 differ by one trailing byte. */
API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t handle, nvmlGpuFabricInfo_v3_t *out)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_gpu(__func__, handle, &t);
    if (!code && !out)
        code = NVML_INVALID_ARGUMENT;
    if (code)
        return sim_end(code);
    int third = out->version == STRUCT_VERSION(nvmlGpuFabricInfo_v3_t, 3);
    if (!third && out->version != STRUCT_VERSION(nvmlGpuFabricInfo_v2_t, 2))
        return sim_end(NVML_ARGUMENT_VERSION_MISMATCH);
    if (t.device->fabric_state == FABRIC_UNSUPPORTED)
        return sim_end(NVML_NOT_SUPPORTED);
    memcpy(out->clusterUuid, t.device->fabric_cluster, sizeof out->clusterUuid);
    out->status = NVML_SUCCESS;
    out->cliqueId = t.device->fabric_clique;
    out->state = t.device->fabric_state;
    out->healthMask = 0;
    if (third)
        out->healthSummary = 0;
    return sim_end(NVML_SUCCESS);
}
