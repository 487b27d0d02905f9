"""Every annotation key that belongs to no vendor, once. Who writes which: docs/protocol.md."""

NODE_LOCK = "hami.io/mutex.lock"
BIND_LOCK = "hami.io/bind.lock"
"""Of a node, held by a scheduler while it binds a pod whose devices' agents release no lock."""
ASSIGNED_NODE = "hami.io/vgpu-node"
ASSIGNED_TIME = "hami.io/vgpu-time"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"

OWN = "hami-plugin.io/"
"""Begins what no HAMi reads."""
REFUSES = f"{OWN}refuses-"
"""Begins a node's annotation of what its daemon refuses of one family; the family's device type follows."""

UNHEALTHY = f"{OWN}unhealthy-"
"""Begins a node's annotation of which devices, by index, are kept back of a family that registers none."""

LABELS = f"{OWN}labels"
"""A node's annotation of the keys of the labels that its daemon has written, separated by commas."""

RESET_WANTED = f"{OWN}reset-wanted"
"""A node's annotation of the UUIDs of devices that need a reset and that nobody has, separated by commas."""

PHASE_ALLOCATING = "allocating"
PHASE_SUCCESS = "success"
PHASE_FAILED = "failed"
