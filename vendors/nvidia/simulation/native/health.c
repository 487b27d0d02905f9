/* Memory errors and what follows from them: counters, remapped rows, retired pages, and the same as field values. */
#include <stddef.h>

#include "sim.h"

enum { ERROR_CORRECTED = 0, ERROR_TYPES = 2, COUNTER_TYPES = 2, LOCATION_DEVICE_MEMORY = 2, LOCATIONS = 8, CAUSE_DOUBLE_BIT = 1 };
enum { VALUE_UNSIGNED = 1, VALUE_UNSIGNED_LONG_LONG = 3 };

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, unsigned *current, unsigned *pending)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_gpu(__func__, handle, &t);
    if (!code && (!current || !pending))
        code = NVML_INVALID_ARGUMENT;
    if (!code && !t.device->ecc)
        code = NVML_NOT_SUPPORTED;
    if (!code)
        *current = *pending = 1;
    return sim_end(code);
}

static nvmlReturn_t errors(const char *symbol, nvmlDevice_t handle, unsigned type, unsigned counter, int anywhere, uint64_t *out)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_gpu(symbol, handle, &t);
    if (!code && (!out || type >= ERROR_TYPES || counter >= COUNTER_TYPES))
        code = NVML_INVALID_ARGUMENT;
    if (!code && !t.device->ecc)
        code = NVML_NOT_SUPPORTED;
    if (!code)
        *out = !anywhere ? 0 : type == ERROR_CORRECTED ? t.device->ecc_corrected : t.device->ecc_uncorrected;
    return sim_end(code);
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned type, unsigned counter, uint64_t *out)
{
    return errors(__func__, handle, type, counter, 1, out);
}

/* All simulated errors are in device memory. */
API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t handle, unsigned type, unsigned counter, unsigned location, uint64_t *out)
{
    return errors(__func__, handle, type, counter, location == LOCATION_DEVICE_MEMORY, location < LOCATIONS ? out : NULL);
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_gpu(__func__, handle, &t);
    if (!code && (!corrected || !uncorrected || !pending || !failed))
        code = NVML_INVALID_ARGUMENT;
    if (!code && !(t.device->ecc && t.device->row_remapping))
        code = NVML_NOT_SUPPORTED;
    if (!code) {
        *corrected = t.device->rows_corrected;
        *uncorrected = t.device->rows_uncorrected;
        *pending = t.device->rows_pending;
        *failed = 0;
    }
    return sim_end(code);
}

/* GPUs that remap rows retire no pages. */
static nvmlReturn_t enter_pages(const char *symbol, nvmlDevice_t handle, const unsigned *out, sim_target *t)
{
    nvmlReturn_t code = sim_enter_gpu(symbol, handle, t);
    if (!code && !out)
        code = NVML_INVALID_ARGUMENT;
    return !code && (!t->device->ecc || t->device->row_remapping) ? NVML_NOT_SUPPORTED : code;
}

API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t handle, unsigned cause, unsigned *count, uint64_t *pages)
{
    sim_target t;
    nvmlReturn_t code = enter_pages(__func__, handle, count, &t);
    if (!code && cause > CAUSE_DOUBLE_BIT)
        code = NVML_INVALID_ARGUMENT;
    if (code)
        return sim_end(code);
    unsigned found = cause == CAUSE_DOUBLE_BIT ? t.device->rows_uncorrected : t.device->rows_corrected;
    unsigned room = pages ? *count : 0;
    for (unsigned i = 0; i < found && i < room; i++)
        pages[i] = (uint64_t)(0x10000u + i) << 12;
    *count = found;
    return sim_end(found > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t handle, unsigned *pending)
{
    sim_target t;
    nvmlReturn_t code = enter_pages(__func__, handle, pending, &t);
    if (!code)
        *pending = t.device->rows_pending;
    return sim_end(code);
}

/* One field: whether it is known, and its number. */
static nvmlReturn_t field(const sim_device *device, uint32_t id, uint64_t *out)
{
    int rows = device->ecc && device->row_remapping, pages = device->ecc && !device->row_remapping;
    int known = 1;
    switch (id) {
    case 1: case 2: known = 1; *out = device->ecc; break;
    case 3: case 5: known = device->ecc; *out = device->ecc_corrected; break;
    case 4: case 6: known = device->ecc; *out = device->ecc_uncorrected; break;
    case 29: known = pages; *out = device->rows_corrected; break;
    case 30: known = pages; *out = device->rows_uncorrected; break;
    case 31: known = pages; *out = device->rows_pending; break;
    case 82: *out = device->temperature + 6; break;
    case 91: known = device->link_count > 0; *out = device->link_count; break;
    case 142: known = rows; *out = device->rows_corrected; break;
    case 143: known = rows; *out = device->rows_uncorrected; break;
    case 144: known = rows; *out = device->rows_pending; break;
    case 145: known = rows; *out = 0; break;
    case 230: *out = device->recovery_action; break;
    default: known = 0;
    }
    return known ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *values)
{
    sim_target t;
    nvmlReturn_t code = sim_enter_gpu(__func__, handle, &t);
    if (!code && (count < 0 || !values))
        code = NVML_INVALID_ARGUMENT;
    for (int i = 0; !code && i < count; i++) {
        uint64_t number = 0;
        values[i].nvmlReturn = field(t.device, values[i].fieldId, &number);
        values[i].timestamp = (int64_t)sim_clock_us();
        values[i].latencyUsec = 0;
        values[i].valueType = values[i].fieldId >= 3 && values[i].fieldId <= 6 ? VALUE_UNSIGNED_LONG_LONG : VALUE_UNSIGNED;
        values[i].value.ullVal = number;
    }
    return sim_end(code);
}
