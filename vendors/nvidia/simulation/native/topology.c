/* How devices are connected: PCIe levels, peer access, NVLink ports, the rack's fabric. */
#include <stddef.h>
#include <string.h>

#include "sim.h"

enum { LEVEL_INTERNAL = 0, P2P_OK = 0, P2P_NOT_SUPPORTED = 5, P2P_INDEX_NVLINK = 2, P2P_INDEX_COUNT = 5 };
enum { LINK_REMOTE_SWITCH = 2, LINK_CAPABILITIES = 6, FABRIC_UNSUPPORTED = 0 };

/* Both devices of a pair call; a lost one fails the call. */
#define ENTER_PAIR(one, two, out)                             \
    ENTER(gpu, one, 1);                                       \
    sim_target peer;                                          \
    const nvmlReturn_t also = sim_also(__func__, two, &peer); \
    if (also || !(out))                                       \
        return also ? also : NVML_INVALID_ARGUMENT

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t two, unsigned *level)
{
    ENTER_PAIR(one, two, level);
    *level = t.index == peer.index ? LEVEL_INTERNAL : t.device->levels[peer.index];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t two, int *same)
{
    ENTER_PAIR(one, two, same);
    *same = t.index == peer.index || t.device->levels[peer.index] == LEVEL_INTERNAL;
    return NVML_SUCCESS;
}

/* With no room (count 0 or no array) only the number is answered, with Success. */
API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t handle, unsigned level, unsigned *count, nvmlDevice_t *out)
{
    ENTER(gpu, handle, count);
    unsigned found = 0;
    for (uint32_t i = 0; i < sim_state->device_count; i++) {
        if (i == t.index || !sim_present(i) || t.device->levels[i] != level)
            continue;
        if (out && found < *count)
            out[found] = sim_handle(KIND_DEVICE, i, 0);
        found++;
    }
    *count = out && *count < found ? *count : found;
    return NVML_SUCCESS;
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
    ENTER_PAIR(one, two, status);
    REQUIRE(index < P2P_INDEX_COUNT, NVML_INVALID_ARGUMENT);
    *status = t.device->p2p_status;
    if (index == P2P_INDEX_NVLINK)
        *status = linked(&t, &peer) ? P2P_OK : P2P_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* One port. NotSupported without NVLink, InvalidArgument above the model's ports. */
#define ENTER_LINK(symbol, handle, number, out)                           \
    ENTER_AS(symbol, gpu, handle, 1);                                     \
    REQUIRE(t.device->link_count, NVML_NOT_SUPPORTED);                    \
    REQUIRE(number < t.device->link_count && out, NVML_INVALID_ARGUMENT); \
    const sim_link *link = &t.device->links[number]

/* An entry point that answers one number about a port, if that holds which it requires. */
#define LINK_GETTER(function, required, expression)                                \
    API nvmlReturn_t function(nvmlDevice_t handle, unsigned number, unsigned *out) \
    {                                                                              \
        ENTER_LINK(__func__, handle, number, out);                                 \
        REQUIRE(link && (required), NVML_NOT_SUPPORTED);                           \
        *out = (unsigned)(expression);                                             \
        return NVML_SUCCESS;                                                       \
    }                                                                              \
    _Static_assert(1, "a semicolon follows")

LINK_GETTER(nvmlDeviceGetNvLinkState, 1, up(t.device, link));
LINK_GETTER(nvmlDeviceGetNvLinkVersion, 1, t.device->link_version);
LINK_GETTER(nvmlDeviceGetNvLinkRemoteDeviceType, up(t.device, link), link->remote_type);

/* Of the six capabilities, the SLI bridge is the one that compute links lack. */
API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t handle, unsigned number, unsigned capability, unsigned *value)
{
    ENTER_LINK(__func__, handle, number, value);
    REQUIRE(capability < LINK_CAPABILITIES, NVML_INVALID_ARGUMENT);
    *value = (unsigned)up(t.device, link) && capability != 4;
    return NVML_SUCCESS;
}

static nvmlReturn_t remote_pci(const char *symbol, nvmlDevice_t handle, unsigned number, nvmlPciInfo_t *out, size_t size)
{
    ENTER_LINK(symbol, handle, number, out);
    REQUIRE(up(t.device, link), NVML_NOT_SUPPORTED);
    nvmlPciInfo_t info = {
        .domain = link->remote_domain,
        .bus = link->remote_bus,
        .device = link->remote_slot,
        .pciDeviceId = link->remote_pci_device_id,
    };
    memcpy(info.busId, link->remote_bus_id, sizeof info.busId);
    memcpy(out, &info, size);
    return NVML_SUCCESS;
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
    ENTER(gpu, handle, out);
    int third = out->version == STRUCT_VERSION(nvmlGpuFabricInfo_v3_t, 3);
    REQUIRE(third || out->version == STRUCT_VERSION(nvmlGpuFabricInfo_v2_t, 2), NVML_ARGUMENT_VERSION_MISMATCH);
    REQUIRE(t.device->fabric_state != FABRIC_UNSUPPORTED, NVML_NOT_SUPPORTED);
    memcpy(out->clusterUuid, t.device->fabric_cluster, sizeof out->clusterUuid);
    out->status = NVML_SUCCESS;
    out->cliqueId = t.device->fabric_clique;
    out->state = t.device->fabric_state;
    out->healthMask = 0;
    if (third)
        out->healthSummary = 0;
    return NVML_SUCCESS;
}
