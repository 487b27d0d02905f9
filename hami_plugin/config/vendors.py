"""The settings that vendors' sections share, with their defaults and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, StringConstraints, create_model, field_validator
from pydantic.fields import FieldInfo

from hami_plugin.config.settings import AbsolutePath, DnsName, Section
from hami_plugin.model.delivery import Delivery, Way

ResourceName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=253
    ),
]


CdiClass = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([-A-Za-z0-9_]*[A-Za-z0-9])?$", max_length=63)]
CdiPrefix = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/$", max_length=254)]
AUTO: Final = "auto"


def setting(key: str, default: Any, description: str, **bounds: Any) -> Any:
    """A field under the key that HAMi's file uses."""
    return Field(default, alias=key, description=description, **bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A Helm value that cannot be changed here. ``value`` computes the one that is served, or None where it is not one
    number; ``served`` describes it, as the end of a sentence.
    """

    served: str
    value: Callable[[Mapping[str, object]], object] = lambda _section: None


def always(value: object, served: str) -> Fixed:
    """The same value for every section."""
    return Fixed(served=served, value=lambda _section: value)


AS_IT_IS: Final[Mapping[str, Fixed]] = {
    "splitCount": always(1, "a whole device goes to one container"),
    "memoryScaling": always(1, "a device offers exactly the memory it has"),
    "coreScaling": always(1, "a device offers exactly the cores it has"),
}


class VendorSettings(Section):
    """What every vendor's section has. A vendor's module extends it.

    ``environment`` maps environment variables to keys, and ``node_config`` the keys of an entry in HAMi's per-node
    ``config.json``. A key is spelt as in the file; ``a.b`` is key ``b`` of section ``a``.
    ``helm`` maps the Helm values of HAMi's documentation to keys, and ``fixed`` has those that no key can change.
    ``hami_section`` is HAMi's name of the section, where it is not the vendor's name. ``hami_list`` is our key for a
    section that is one list in HAMi's file. ``restart`` has the keys that a running daemon cannot change, as a library
    that one process loads once.
    """

    environment: ClassVar[Mapping[str, str]] = {}
    node_config: ClassVar[Mapping[str, str]] = {}
    helm: ClassVar[Mapping[str, str]] = {}
    fixed: ClassVar[Mapping[str, Fixed]] = AS_IT_IS
    hami_section: ClassVar[str] = ""
    hami_list: ClassVar[str] = ""
    restart: ClassVar[frozenset[str]] = frozenset()

    enabled: bool | Literal["auto"] = Field(
        "auto", description="Serve this vendor's devices. `auto`: if the host has such hardware."
    )

    @classmethod
    def keyed(cls, section: object) -> object:
        """HAMi's section as a mapping."""
        return {cls.hami_list: section} if cls.hami_list and isinstance(section, list) else section


def listed(value: object) -> object:
    """A comma-separated text, as in HAMi's environment variables, or a YAML list, as a tuple."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class CdiSettings(Section):
    """Container Device Interface: the runtime injects devices as the daemon's spec files describe them."""

    enabled: bool = Field(
        False, description="Pass devices by CDI: adds `cdi-annotations` if `deviceListStrategy` has no CDI strategy."
    )
    vendor: DnsName = Field("hami.io", description="Vendor part of the devices' CDI names.")
    cls: CdiClass = Field("gpu", alias="class", description="Class part of the devices' CDI names.")
    annotation_prefix: CdiPrefix = Field(
        "cdi.k8s.io/",
        alias="annotationPrefix",
        description="Prefix of the annotations in which the runtime looks for CDI names.",
    )


class ServedSettings(VendorSettings):
    """What every vendor with a node side has. ``plain`` is the device list strategy where no better one is known, and
    ``served_ways`` are all that the vendor supports.

    ``cdi_class`` is the default of ``cdi.class``, and ``cdi_class_help`` that key's description.
    """

    cdi_class: ClassVar[str] = "gpu"
    cdi_class_help: ClassVar[str] = "Class part of the devices' CDI names."

    plain: ClassVar[Way] = Way.DEVICE_SPECS
    served_ways: ClassVar[frozenset[Way]] = frozenset({Way.DEVICE_SPECS, Way.CDI_ANNOTATIONS, Way.CDI_CRI})

    device_list_strategy: Annotated[tuple[Way | Literal["auto"], ...], BeforeValidator(listed)] = Field(
        ("auto",),
        min_length=1,
        alias="deviceListStrategy",
        description="How containers receive their devices. `auto` chooses by the configuration of this "
        "node's container runtime.",
    )
    cdi: CdiSettings = Field(default_factory=CdiSettings, description="CDI names and specs.")
    front_end: Literal["device-plugin", "dra", "auto"] = Field(
        "device-plugin",
        alias="frontEnd",
        description="How pods get the vendor's devices: as resources that the kubelet counts, or by ResourceClaims "
        "(Dynamic Resource Allocation, Kubernetes 1.34). `auto`: as the node's label "
        "`hami-plugin.io/<vendor>-front-end` says, else by claims where Kubernetes is 1.36 or newer and the kubelet "
        "and the vendor's settings allow it. See docs/dra.md.",
    )
    fault_taints: Literal["off", "no-schedule", "no-execute"] = Field(
        "no-schedule",
        alias="faultTaints",
        description="With `frontEnd: dra`: what an unhealthy device is in the slices. `off`: absent. `no-schedule`: "
        "tainted, so that no claim is given it. `no-execute`: also evict its pods when the fault asks for a reset or "
        "a reboot.",
    )
    linked_devices: Literal["groups", "sets"] = Field(
        "groups",
        alias="linkedDevices",
        description="With `frontEnd: dra`: how claims ask for several devices that are linked with each other. "
        "`groups`: by attributes that all of them share. `sets`: as one device, the best-linked set that is free "
        "(Kubernetes 1.36); constraints over single devices are then unreliable. See docs/dra.md.",
    )
    isolated: bool | None = Field(
        None,
        description="Run the vendor's driver in its own process, so that a crash does not end the daemon. "
        "Empty: if the vendor's library is known to need it.",
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_options: Any) -> None:
        """Give a vendor that sets ``cdi_class`` a section ``cdi`` with that default. Validators are built later."""
        if "cdi_class" in cls.__dict__:
            named = Field(cls.cdi_class, alias="class", description=cls.cdi_class_help)
            name = f"{cls.__name__.removesuffix('Settings')}Cdi"
            section = create_model(name, __base__=CdiSettings, __doc__=CdiSettings.__doc__, cls=(CdiClass, named))
            # An isolated driver is sent its settings, so that pickle has to find the class under its name.
            section.__module__, section.__qualname__ = cls.__module__, f"{cls.__qualname__}.{name}"
            setattr(cls, name, section)
            described = Field(default_factory=section, description=cls.__pydantic_fields__["cdi"].description)
            cls.__pydantic_fields__["cdi"] = FieldInfo.from_annotated_attribute(section, described)

    @field_validator("device_list_strategy")
    @classmethod
    def _known_ways(cls, value: tuple[Way | str, ...]) -> tuple[Way | str, ...]:
        for way in value:
            if way != AUTO and way not in cls.served_ways:
                raise ValueError(
                    f"{str(way)!r} is not supported by this vendor; choose from: {', '.join(sorted(cls.served_ways))}"
                )
        if AUTO in value and len(value) > 1:
            raise ValueError("'auto' cannot be combined with others; name the strategies, or use auto alone")
        return tuple(dict.fromkeys(value))

    @property
    def automatic(self) -> bool:
        """Whether the strategy depends on the abilities of the node's container runtime."""
        return AUTO in self.device_list_strategy and not self.cdi.enabled

    @property
    def unlimited(self) -> str:
        """Which limits of shares nothing enforces, as a message; empty if all are enforced, or nothing is shared."""
        return ""

    @property
    def delivery(self) -> Delivery:
        """How containers receive devices. The plain strategy while the choice is still to be made."""
        ways = tuple(way for way in self.device_list_strategy if isinstance(way, Way))
        if self.cdi.enabled and not any(way.cdi for way in ways):
            ways = (*ways, Way.CDI_ANNOTATIONS)
        return Delivery(
            ways=ways or (self.plain,),
            kind=f"{self.cdi.vendor}/{self.cdi.cls}",
            annotation_prefix=self.cdi.annotation_prefix,
        )


class TreeSettings(ServedSettings):
    """For vendors whose devices are discovered in sysfs, procfs and /dev."""

    sysfs_root: AbsolutePath | None = Field(None, alias="sysfsRoot", description="Read this directory instead of /sys.")
    proc_root: AbsolutePath | None = Field(None, alias="procRoot", description="Read this directory instead of /proc.")
    dev_root: AbsolutePath | None = Field(
        None, alias="devRoot", description="Read this directory of the host instead of /dev."
    )


class TrustSettings(TreeSettings):
    """For vendors whose shares nothing on the node limits."""

    unlimited_shares: bool = Field(
        False,
        alias="unlimitedShares",
        description="Serve shares of devices although nothing on this node limits a container to its share.",
    )

    @property
    def unlimited(self) -> str:
        return "nothing on this node limits a container to its share of a device" if self.unlimited_shares else ""

    def whole_only(self, agent: str) -> str:
        """Why the node serves whole devices only, unless containers are trusted. Only ``agent`` could limit shares."""
        if self.unlimited_shares:
            return ""
        trust = "set unlimitedShares: true if containers can be trusted"
        return f"only {agent} limits containers to shares; request whole devices or {trust}"


class ToolSettings(TreeSettings):
    """For vendors whose own tool lists the devices."""

    tool_seconds: float = Field(10.0, gt=0, le=20, alias="toolSeconds", description="Timeout of the tool.")
    driver_files: tuple[AbsolutePath, ...] = Field(
        (),
        alias="driverFiles",
        description="Files and directories of the host's driver to mount into containers, read-only, if they exist.",
    )
