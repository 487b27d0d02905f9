/* A libdcmi.so for a machine that a text file beside it describes. The file is read anew at every call, so that whoever
 * replaces it disturbs programs that run already. Functions and structures are those of the driver's own header. */
#include <string.h>

#include "machine.h"

#define API __attribute__((visibility("default")))

struct dcmi_chip_info_v2 {
    unsigned char chip_type[32], chip_name[32], chip_ver[32];
    unsigned int aicore_cnt;
    unsigned char npu_name[32];
};

struct dcmi_pcie_info_all {
    unsigned int venderid, subvenderid, deviceid, subdeviceid;
    int domain;
    unsigned int bdf_busid, bdf_deviceid, bdf_funcid;
    unsigned char reserve[32];
};

struct dcmi_hbm_info {
    unsigned long long memory_size;
    unsigned int freq;
    unsigned long long memory_usage;
    int temp;
    unsigned int bandwith_util_rate;
};

struct dcmi_die_id {
    unsigned int soc_die[5];
};

API int dcmi_init(void)
{
    struct machine m;
    return read_machine(&m);
}

API int dcmi_get_driver_version(char *version, unsigned int length)
{
    struct machine m;
    int code = read_machine(&m);
    if (!code && (!version || strlen(m.version) >= length))
        code = INVALID_PARAMETER;
    if (!code)
        strcpy(version, m.version);
    return code;
}

API int dcmi_get_card_list(int *count, int *cards, int length)
{
    struct machine m;
    int code = read_machine(&m);
    if (code)
        return code;
    *count = 0;
    for (int i = 0; i < m.count; i++)
        if ((!*count || cards[*count - 1] != m.units[i].card) && *count < length)
            cards[(*count)++] = m.units[i].card;
    return OK;
}

/* Beside its chips, each card has a controller as its last unit. */
API int dcmi_get_device_num_in_card(int card, int *count)
{
    struct machine m;
    int code = read_machine(&m);
    if (code)
        return code;
    *count = 1;
    for (int i = 0; i < m.count; i++)
        if (m.units[i].card == card && m.units[i].chip >= *count - 1)
            *count = m.units[i].chip + 2;
    return OK;
}

API int dcmi_get_device_type(int card, int chip, unsigned int *type)
{
    struct machine m;
    int code = read_machine(&m);
    if (!code)
        *type = find(&m, card, chip) ? 0 : 1;
    return code;
}

API int dcmi_get_device_chip_info_v2(int card, int chip, struct dcmi_chip_info_v2 *info)
{
    struct machine m;
    struct unit *u;
    int code = ask(&m, card, chip, &u);
    if (code)
        return code;
    memset(info, 0, sizeof *info);
    strcpy((char *)info->chip_type, "Ascend");
    strcpy((char *)info->chip_name, u->name);
    strcpy((char *)info->chip_ver, "V1");
    info->aicore_cnt = (unsigned)u->cores;
    strcpy((char *)info->npu_name, u->name);
    return OK;
}

API int dcmi_get_device_die_v2(int card, int chip, int kind, struct dcmi_die_id *die)
{
    struct machine m;
    struct unit *u;
    int code = ask(&m, card, chip, &u);
    if (!code && kind != 1)
        code = INVALID_PARAMETER;
    if (!code)
        memcpy(die->soc_die, u->die, sizeof u->die);
    return code;
}

API int dcmi_get_device_logic_id(int *logical, int card, int chip)
{
    struct machine m;
    struct unit *u;
    int code = ask(&m, card, chip, &u);
    if (!code)
        *logical = (int)u->logical;
    return code;
}

API int dcmi_get_device_phyid_from_logicid(unsigned int logical, unsigned int *physical)
{
    struct machine m;
    int code = read_machine(&m);
    for (int i = 0; !code && i < m.count; i++)
        if (m.units[i].logical == logical) {
            *physical = m.units[i].physical;
            return OK;
        }
    return code ? code : NO_DEVICE;
}

API int dcmi_get_device_pcie_info_v2(int card, int chip, struct dcmi_pcie_info_all *info)
{
    struct machine m;
    struct unit *u;
    int code = ask(&m, card, chip, &u);
    if (!code)
        *info = (struct dcmi_pcie_info_all){
            .venderid = 0x19e5,
            .domain = (int)u->domain,
            .bdf_busid = u->bus,
            .bdf_deviceid = u->device,
            .bdf_funcid = u->function,
        };
    return code;
}

API int dcmi_get_device_health(int card, int chip, unsigned int *health)
{
    struct machine m;
    struct unit *u;
    int code = ask(&m, card, chip, &u);
    if (!code)
        *health = u->health;
    return code;
}

API int dcmi_get_device_errorcode_v2(int card, int chip, int *count, unsigned int *codes, unsigned int length)
{
    struct machine m;
    struct unit *u;
    int code = ask(&m, card, chip, &u);
    if (code)
        return code;
    *count = u->error && length ? 1 : 0;
    if (*count)
        codes[0] = u->error;
    return OK;
}

API int dcmi_get_device_share_enable(int card, int chip, int *enabled)
{
    struct machine m;
    struct unit *u;
    int code = ask(&m, card, chip, &u);
    if (!code)
        *enabled = u->shared;
    return code;
}

/* MiB. A chip that has no such memory, as a 310P, says that it does not know the question. */
API int dcmi_get_device_hbm_info(int card, int chip, struct dcmi_hbm_info *info)
{
    struct machine m;
    struct unit *u;
    int code = ask(&m, card, chip, &u);
    if (!code && !strncmp(u->name, "310", 3))
        code = NOT_SUPPORTED;
    if (!code)
        *info = (struct dcmi_hbm_info){.memory_size = 65536, .freq = 1600, .memory_usage = (unsigned)u->used, .temp = 40};
    return code;
}

/* 2 asks about the AI cores. */
API int dcmi_get_device_utilization_rate(int card, int chip, int kind, unsigned int *percent)
{
    struct machine m;
    struct unit *u;
    int code = ask(&m, card, chip, &u);
    if (!code && kind != 2)
        code = NOT_SUPPORTED;
    if (!code)
        *percent = (unsigned)u->busy;
    return code;
}

API int dcmi_get_topo_info_by_device_id(int card, int chip, int other_card, int other_chip, int *kind)
{
    struct machine m;
    struct unit *one, *other;
    int code = ask(&m, card, chip, &one);
    if (code)
        return code;
    other = find(&m, other_card, other_chip);
    if (!other)
        return NO_DEVICE;
    *kind = m.kinds[(one - m.units) * m.count + (other - m.units)];
    return other->code;
}
