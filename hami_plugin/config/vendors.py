"""What vendors' sections of the configuration have in common, with its defaults and limits."""

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
    """A name of the Helm values that sets nothing here: the ``value`` that is served, as far as a section says it, or
    None where it is not one number; and ``served`` is what is served, as the end of a sentence.
    """

    served: str
    value: Callable[[Mapping[str, object]], object] = lambda _section: None


def always(value: object, served: str) -> Fixed:
    """The same value whatever the section says."""
    return Fixed(served=served, value=lambda _section: value)


AS_IT_IS: Final[Mapping[str, Fixed]] = {
    "splitCount": always(1, "a device goes whole to one container"),
    "memoryScaling": always(1, "as much memory is offered as a device has"),
    "coreScaling": always(1, "as many cores are offered as a device has"),
}


class VendorSettings(Section):
    """What every vendor's section has. A vendor's module extends it.

    ``environment`` tells which environment variables fill which keys, ``node_config`` the same for the keys of an entry
    in HAMi's per-node ``config.json``. A key is spelt as in the file; ``a.b`` is key ``b`` of section ``a``.
    ``helm`` tells which key is meant by a name of the Helm values that HAMi's documentation shows, and ``fixed`` what
    is served where there is no key for it.
    ``hami_section`` is what HAMi calls the section, where that is not the vendor's name; ``hami_list`` our key for it,
    where all of it is one list.
    """

    environment: ClassVar[Mapping[str, str]] = {}
    node_config: ClassVar[Mapping[str, str]] = {}
    helm: ClassVar[Mapping[str, str]] = {}
    fixed: ClassVar[Mapping[str, Fixed]] = AS_IT_IS
    hami_section: ClassVar[str] = ""
    hami_list: ClassVar[str] = ""

    enabled: bool | Literal["auto"] = Field(
        "auto", description="Serve this vendor's devices; `auto` does where the host has such hardware."
    )

    @classmethod
    def keyed(cls, section: object) -> object:
        """HAMi's section as one that has keys."""
        return {cls.hami_list: section} if cls.hami_list and isinstance(section, list) else section


def listed(value: object) -> object:
    """A comma list, as in HAMi's environment variables, or a YAML list."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class CdiSettings(Section):
    """Devices by Container Device Interface: the runtime injects what a spec file of ours describes."""

    enabled: bool = Field(
        False, description="Hand devices over by CDI: adds `cdi-annotations` where `deviceListStrategy` has no CDI way."
    )
    vendor: DnsName = Field("hami.io", description="Vendor part of the devices' CDI names.")
    cls: CdiClass = Field("gpu", alias="class", description="Class part of the devices' CDI names.")
    annotation_prefix: CdiPrefix = Field(
        "cdi.k8s.io/", alias="annotationPrefix", description="Under which annotations the runtime looks for CDI names."
    )


class ServedSettings(VendorSettings):
    """What every vendor with a node side has. ``plain`` is how devices are handed over where nothing better is known,
    ``served_ways`` what the vendor can do at all.

    ``cdi_class`` is the default of ``cdi.class``, and ``cdi_class_help`` what the reference says of that key.
    """

    cdi_class: ClassVar[str] = "gpu"
    cdi_class_help: ClassVar[str] = "Class part of the devices' CDI names."

    plain: ClassVar[Way] = Way.DEVICE_SPECS
    served_ways: ClassVar[frozenset[Way]] = frozenset({Way.DEVICE_SPECS, Way.CDI_ANNOTATIONS, Way.CDI_CRI})

    device_list_strategy: Annotated[tuple[Way | Literal["auto"], ...], BeforeValidator(listed)] = Field(
        ("auto",),
        min_length=1,
        alias="deviceListStrategy",
        description="How a container receives its devices; `auto` looks at what this node's container runtime can do.",
    )
    cdi: CdiSettings = Field(default_factory=CdiSettings, description="CDI names and specs.")
    isolated: bool | None = Field(
        None,
        description="Run the driver in a process of its own, which may crash alone. "
        "Empty: where the vendor's library is known to need it.",
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_options: Any) -> None:
        """Give a vendor that names its CDI class a section ``cdi`` with that default; validators are built later."""
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
                    f"{str(way)!r} is not served for this vendor; choose from: {', '.join(sorted(cls.served_ways))}"
                )
        if AUTO in value and len(value) > 1:
            raise ValueError("'auto' stands alone; name the strategies, or leave the choice to auto")
        return tuple(dict.fromkeys(value))

    @property
    def automatic(self) -> bool:
        """Whether the choice of ways is still to be made, from what the node's runtime can do."""
        return AUTO in self.device_list_strategy and not self.cdi.enabled

    @property
    def unlimited(self) -> str:
        """What containers with a part of a device are not held to, in words; empty where they are, or have none."""
        return ""

    @property
    def delivery(self) -> Delivery:
        """How devices are handed over. Where the choice is still to be made, the plain way."""
        ways = tuple(way for way in self.device_list_strategy if isinstance(way, Way))
        if self.cdi.enabled and not any(way.cdi for way in ways):
            ways = (*ways, Way.CDI_ANNOTATIONS)
        return Delivery(
            ways=ways or (self.plain,),
            kind=f"{self.cdi.vendor}/{self.cdi.cls}",
            annotation_prefix=self.cdi.annotation_prefix,
        )


class TreeSettings(ServedSettings):
    """What a vendor has whose devices are found in the kernel's file trees."""

    sysfs_root: AbsolutePath | None = Field(None, alias="sysfsRoot", description="Another place than /sys.")
    proc_root: AbsolutePath | None = Field(None, alias="procRoot", description="Another place than /proc.")
    dev_root: AbsolutePath | None = Field(None, alias="devRoot", description="Another place than /dev, on the host.")


class TrustSettings(TreeSettings):
    """What a vendor has whose shares nothing on the node limits."""

    unlimited_shares: bool = Field(
        False,
        alias="unlimitedShares",
        description="Serve shares of a device although nothing on this node holds a container to its share.",
    )

    @property
    def unlimited(self) -> str:
        return "nothing on this node holds a container to its share of a device" if self.unlimited_shares else ""

    def whole_only(self, agent: str) -> str:
        """Why the node hands out no parts, unless containers are trusted; ``agent`` is who alone could limit them."""
        if self.unlimited_shares:
            return ""
        trust = "set unlimitedShares: true where containers can be trusted"
        return f"only {agent} limits containers to parts; ask for whole devices or {trust}"


class ToolSettings(TreeSettings):
    """What a vendor has whose own tool lists the devices."""

    tool_seconds: float = Field(10.0, gt=0, le=20, alias="toolSeconds", description="How long the tool may take.")
    driver_files: tuple[AbsolutePath, ...] = Field(
        (),
        alias="driverFiles",
        description="Files and folders of the host's driver that containers receive, read-only, where they exist.",
    )
