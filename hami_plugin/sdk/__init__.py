"""The contract between the daemon and a vendor, which both import from here. What is one vendor's own is not here.

A vendor finds here also what most vendors need: cards that a tool lists, a polling driver, device nodes.
"""

from hami_plugin.sdk import pci
from hami_plugin.sdk.device_nodes import DeviceNodes, mounted
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
    whole_devices,
)
from hami_plugin.sdk.hardware import Hardware, distances
from hami_plugin.sdk.lazy import deferred
from hami_plugin.sdk.listed_cards import Card, Fabric, comma_lists, listed_vendor, whole_cards
from hami_plugin.sdk.polling import PollingDriver
from hami_plugin.sdk.tools import ToolError, address, json_object, matrix, mebibytes, read, read_table
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
    "Card",
    "DeviceNodes",
    "Driver",
    "Fabric",
    "Family",
    "Hardware",
    "HealthEvent",
    "Injection",
    "Leftovers",
    "LockRule",
    "NodeSide",
    "Patch",
    "PollingDriver",
    "Resources",
    "SchedulingRules",
    "Simulator",
    "ToolError",
    "Units",
    "Vendor",
    "address",
    "both_keys",
    "comma_lists",
    "deferred",
    "distances",
    "json_object",
    "listed_vendor",
    "load_vendor",
    "matrix",
    "mebibytes",
    "mounted",
    "pci",
    "read",
    "read_table",
    "serving",
    "vendor_names",
    "whole_cards",
    "whole_devices",
]
