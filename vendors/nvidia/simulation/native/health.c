/* Memory errors and what follows from them: counters, remapped rows, retired pages, and the same as field values. */
#include <stddef.h>

#include "sim.h"

enum { ERROR_CORRECTED = 0, ERROR_TYPES = 2, COUNTER_TYPES = 2, LOCATION_DEVICE_MEMORY = 2, LOCATIONS = 8, CAUSE_DOUBLE_BIT = 1 };
enum { VALUE_UNSIGNED = 1, VALUE_UNSIGNED_LONG_LONG = 3 };

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, unsigned *current, unsigned *pending)
{
    ENTER(gpu, handle, current && pending);
    REQUIRE(t.device->ecc, NVML_NOT_SUPPORTED);
    *current = *pending = 1;
    return NVML_SUCCESS;
}

static nvmlReturn_t errors(const char *symbol, nvmlDevice_t handle, unsigned type, unsigned counter, int anywhere, uint64_t *out)
{
    ENTER_AS(symbol, gpu, handle, out);
    REQUIRE(type < ERROR_TYPES && counter < COUNTER_TYPES, NVML_INVALID_ARGUMENT);
    REQUIRE(t.device->ecc, NVML_NOT_SUPPORTED);
    *out = !anywhere ? 0 : type == ERROR_CORRECTED ? t.device->ecc_corrected : t.device->ecc_uncorrected;
    return NVML_SUCCESS;
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
    ENTER(gpu, handle, corrected && uncorrected && pending && failed);
    REQUIRE(t.device->ecc && t.device->row_remapping, NVML_NOT_SUPPORTED);
    *corrected = t.device->rows_corrected;
    *uncorrected = t.device->rows_uncorrected;
    *pending = t.device->rows_pending;
    *failed = 0;
    return NVML_SUCCESS;
}

/* GPUs that remap rows retire no pages. */
static int retires_pages(const sim_device *device)
{
    return device->ecc && !device->row_remapping;
}

API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t handle, unsigned cause, unsigned *count, uint64_t *pages)
{
    ENTER(gpu, handle, count);
    REQUIRE(retires_pages(t.device), NVML_NOT_SUPPORTED);
    REQUIRE(cause <= CAUSE_DOUBLE_BIT, NVML_INVALID_ARGUMENT);
    unsigned found = cause == CAUSE_DOUBLE_BIT ? t.device->rows_uncorrected : t.device->rows_corrected;
    unsigned room = pages ? *count : 0;
    for (unsigned i = 0; i < found && i < room; i++)
        pages[i] = (uint64_t)(0x10000u + i) << 12;
    *count = found;
    return found > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t handle, unsigned *pending)
{
    ENTER(gpu, handle, pending);
    REQUIRE(retires_pages(t.device), NVML_NOT_SUPPORTED);
    *pending = t.device->rows_pending;
    return NVML_SUCCESS;
}

/* One field: whether it is known, and its number. */
static nvmlReturn_t field(const sim_device *device, uint32_t id, uint64_t *out)
{
    int rows = device->ecc && device->row_remapping, pages = retires_pages(device);
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
    ENTER(gpu, handle, count >= 0 && values);
    for (int i = 0; i < count; i++) {
        uint64_t number = 0;
        values[i].nvmlReturn = field(t.device, values[i].fieldId, &number);
        values[i].timestamp = (int64_t)sim_time_us();
        values[i].latencyUsec = 0;
        values[i].valueType = values[i].fieldId >= 3 && values[i].fieldId <= 6 ? VALUE_UNSIGNED_LONG_LONG : VALUE_UNSIGNED;
        values[i].value.ullVal = number;
    }
    return NVML_SUCCESS;
}
