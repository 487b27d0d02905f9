"""The contract between the daemon and a vendor, which both import from here. What is one vendor's own is not here."""

from hami_plugin.sdk.family import (
    SHARED_LOCK,
    AnnotationKeys,
    Announce,
    Family,
    Injection,
    Leftovers,
    LockRule,
    NodeSide,
    Patch,
    Resources,
    SchedulingRules,
    Units,
    both_keys,
)
from hami_plugin.sdk.vendor import (
    Driver,
    HealthEvent,
    Simulator,
    Vendor,
    load_vendor,
    serving,
    vendor_names,
)

__all__ = [
    "SHARED_LOCK",
    "AnnotationKeys",
    "Announce",
    "Driver",
    "Family",
    "HealthEvent",
    "Injection",
    "Leftovers",
    "LockRule",
    "NodeSide",
    "Patch",
    "Resources",
    "SchedulingRules",
    "Simulator",
    "Units",
    "Vendor",
    "both_keys",
    "load_vendor",
    "serving",
    "vendor_names",
]
