"""A spec: the devices of one kind on one machine, and what each of them adds to a container.

The names are those of the CDI specification: ``containerEdits`` are environment, device nodes, mounts and hooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdi.names import Kind, QualifiedName

BIND = ("nosuid", "nodev", "rbind", "rprivate")
"""Mount options of a bind mount, apart from ``ro``. Without one of ``bind`` and ``rbind`` a runtime binds nothing."""
HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
"""The moments in a container's life at which a hook can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node. ``permissions`` is any of ``r``, ``w`` and ``m`` (mknod); none of them means all.

    ``type`` is ``c`` or ``u`` (character), ``b`` (block) or ``p`` (pipe). Type and numbers that are not given are
    those of the node on the host, when the container is made.
    """

    path: str
    host_path: str = ""
    permissions: str = "rw"
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None

    @property
    def source(self) -> str:
        return self.host_path or self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mount of ``host_path`` at ``container_path``: a bind mount, unless ``options`` and ``type`` say otherwise.

    ``read_only`` alone decides whether it is writable; ``options`` are all others.
    """

    host_path: str
    container_path: str
    read_only: bool = True
    options: tuple[str, ...] = BIND
    type: str = ""

    def __post_init__(self) -> None:
        if "ro" in self.options or "rw" in self.options:
            raise ValueError(f'options of the mount at "{self.container_path}" have ro or rw; use read_only')


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program that the runtime calls at one of ``HOOK_NAMES``. ``env`` has entries of the form ``NAME=value``."""

    name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelRdt:
    """A class of service of Intel's Resource Director Technology: shares of cache and of memory bandwidth."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    enable_cmt: bool = False
    enable_mbm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """The edits of one device, or of all devices of one container. Later additions follow earlier ones."""

    env: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()
    intel_rdt: IntelRdt | None = None

    def merged(self, *others: ContainerEdits) -> ContainerEdits:
        """Add ``others`` in order: a later variable or class of service wins, what is identical stays once."""
        everything = (self, *others)
        return ContainerEdits(
            env={key: value for edits in everything for key, value in edits.env.items()},
            device_nodes=tuple(dict.fromkeys(node for edits in everything for node in edits.device_nodes)),
            mounts=tuple(dict.fromkeys(mount for edits in everything for mount in edits.mounts)),
            hooks=tuple(dict.fromkeys(hook for edits in everything for hook in edits.hooks)),
            additional_gids=tuple(dict.fromkeys(gid for edits in everything for gid in edits.additional_gids)),
            intel_rdt=next((edits.intel_rdt for edits in reversed(everything) if edits.intel_rdt is not None), None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecDevice:
    """One device by its name within the spec. It must add something: edits that are empty are refused."""

    name: str
    edits: ContainerEdits
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Devices of one kind. ``edits`` are added once to each container that has at least one of them."""

    kind: Kind
    devices: tuple[SpecDevice, ...]
    edits: ContainerEdits = field(default_factory=ContainerEdits)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[QualifiedName, ...]:
        return tuple(self.kind.device(device.name) for device in self.devices)
