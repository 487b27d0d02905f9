"""The contract between the daemon and a vendor, which both import from here. What is one vendor's own is not here."""

from hami_plugin.vendor.annotations import SHARED_LOCK, AnnotationKeys, Announce, LockRule, Patch, both_keys
from hami_plugin.vendor.driver import Driver, HealthEvent
from hami_plugin.vendor.exports import Facts, Simulator, Vendor, as_described, serving
from hami_plugin.vendor.family import Family, Injection, Leftovers, NodeSide, SchedulingRules
from hami_plugin.vendor.loading import load_vendor, vendor_names
from hami_plugin.vendor.resources import Resources, Units

__all__ = [
    "SHARED_LOCK",
    "AnnotationKeys",
    "Announce",
    "Driver",
    "Facts",
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
    "as_described",
    "both_keys",
    "load_vendor",
    "serving",
    "vendor_names",
]
