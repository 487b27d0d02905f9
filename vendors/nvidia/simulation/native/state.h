/* The state file. Written by layout.py: change it there, then
   python -c "from vendors.nvidia.simulation.layout import C_HEADER; print(C_HEADER, end='')" */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <stdint.h>

#define SIM_LAYOUT 0xaa6c6285u
#define SIM_DEVICES 64
#define SIM_LINKS 36
#define SIM_PROFILES 18
#define SIM_STARTS 8
#define SIM_INSTANCES 16
#define SIM_PROCESSES 64
#define SIM_EVENTS 64
#define SIM_FAILURES 256
#define SIM_MAGIC "HAMINVML"
#define SIM_NONE 0xffffffffu
#define RIGHT_CONFIG 1
#define RIGHT_MONITOR 2
#define DRIVER_LOADED 0
#define DRIVER_GONE 1
#define DRIVER_MISMATCH 2

typedef struct {
    uint64_t sequence;
    uint64_t type;
    uint64_t data;
    uint32_t device;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t spare;
} sim_event;
_Static_assert(sizeof(sim_event) == 40, "layout.py and the compiler differ");

typedef struct {
    char symbol[64];
    uint32_t device;
    uint32_t code;
    uint32_t delay_ms;
    uint32_t spare;
} sim_failure;
_Static_assert(sizeof(sim_failure) == 80, "layout.py and the compiler differ");

typedef struct {
    uint32_t active;
    uint32_t last;
    uint32_t remote_type;
    uint32_t remote_device;
    uint32_t remote_pci_device_id;
    uint32_t remote_domain;
    uint32_t remote_bus;
    uint32_t remote_slot;
    char remote_bus_id[32];
} sim_link;
_Static_assert(sizeof(sim_link) == 64, "layout.py and the compiler differ");

typedef struct {
    uint32_t number;
    uint32_t id;
    uint32_t memory_mib;
    uint32_t compute_slices;
    uint32_t multiprocessors;
    uint32_t max_instances;
    uint32_t copy_engines;
    uint32_t decoders;
    uint32_t encoders;
    uint32_t jpegs;
    uint32_t ofas;
    uint32_t size;
    uint32_t start_count;
    uint32_t starts[8];
    char name[32];
} sim_profile;
_Static_assert(sizeof(sim_profile) == 116, "layout.py and the compiler differ");

typedef struct {
    uint32_t serial;
    uint32_t id;
    uint32_t profile;
    uint32_t start;
    uint32_t held;
    uint32_t spare;
} sim_gpu_instance;
_Static_assert(sizeof(sim_gpu_instance) == 24, "layout.py and the compiler differ");

typedef struct {
    uint32_t serial;
    uint32_t owner;
    uint32_t id;
    uint32_t number;
    uint32_t start;
    uint32_t slices;
    uint32_t slot;
    uint32_t held;
    char uuid[96];
} sim_compute_instance;
_Static_assert(sizeof(sim_compute_instance) == 128, "layout.py and the compiler differ");

typedef struct {
    uint64_t used;
    uint32_t pid;
    uint32_t kind;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t sm_percent;
    uint32_t memory_percent;
} sim_process;
_Static_assert(sizeof(sim_process) == 32, "layout.py and the compiler differ");

typedef struct {
    char uuid[96];
    char name[96];
    char serial[32];
    char bus_id[32];
    char bus_id_legacy[16];
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_slot;
    uint32_t pci_device_id;
    uint32_t pci_subsystem_id;
    uint32_t minor;
    uint64_t memory;
    uint64_t reserved;
    uint64_t bar1;
    uint64_t cpus[16];
    uint64_t nodes[2];
    int32_t memory_node;
    uint32_t multiprocessors;
    uint32_t cores;
    uint32_t capability_major;
    uint32_t capability_minor;
    uint32_t architecture;
    uint32_t brand;
    uint32_t ecc;
    uint32_t row_remapping;
    uint32_t addressing;
    uint32_t power_idle_mw;
    uint32_t power_limit_mw;
    uint32_t clock_sm_mhz;
    uint32_t clock_memory_mhz;
    uint32_t pcie_generation;
    uint32_t pcie_width;
    uint32_t levels[64];
    uint32_t p2p_status;
    uint32_t link_version;
    uint32_t link_count;
    uint32_t fabric_clique;
    uint8_t fabric_cluster[16];
    uint32_t fabric_state;
    uint32_t mig_capable;
    uint32_t mig_memory_slices;
    uint32_t mig_compute_slices;
    uint32_t mig_max_devices;
    uint32_t profile_count;
    sim_profile profiles[18];
    sim_link links[36];
    uint32_t mig_current;
    uint32_t mig_pending;
    uint32_t passed_through;
    sim_gpu_instance gpu_instances[16];
    sim_compute_instance compute_instances[16];
    uint64_t used;
    uint32_t lost;
    uint32_t quiet;
    uint32_t unplugged;
    uint32_t asymmetric;
    uint32_t slow_ms;
    uint32_t hang;
    uint32_t recovery_action;
    uint32_t compute_mode;
    uint32_t rows_corrected;
    uint32_t rows_uncorrected;
    uint32_t rows_pending;
    uint64_t ecc_corrected;
    uint64_t ecc_uncorrected;
    uint32_t gpu_percent;
    uint32_t memory_percent;
    uint32_t temperature;
    uint64_t energy_uj;
    uint64_t energy_at_ms;
    uint32_t process_count;
    sim_process processes[64];
} sim_device;
_Static_assert(sizeof(sim_device) == 9840, "layout.py and the compiler differ");

typedef struct {
    char magic[8];
    uint32_t layout;
    uint32_t size;
    uint32_t device_size;
    uint32_t device_count;
    uint32_t driver;
    uint32_t epoch;
    uint32_t no_devices;
    uint32_t slow_ms;
    uint32_t cuda_version;
    uint32_t serial;
    uint64_t event_sequence;
    char driver_version[96];
    char nvml_version[96];
    sim_event events[64];
    uint32_t withheld;
    uint32_t nodes_withheld;
    uint32_t parent_in_info;
    uint32_t calls_left;
    uint32_t failing;
    uint32_t fail_code;
    uint32_t failure_count;
    uint32_t spare;
    char fatal[64];
    sim_failure failures[256];
} sim_header;
_Static_assert(sizeof(sim_header) == 23384, "layout.py and the compiler differ");

#endif
