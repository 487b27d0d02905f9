from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field

from hami_plugin.config.load import Configuration, load
from hami_plugin.config.settings import Section
from hami_plugin.config.vendors import VendorSettings
from hami_plugin.errors import ConfigError, UnknownVendorError


class Filter(Section):
    uuid: tuple[str, ...] = ()
    index: tuple[Annotated[int, Field(ge=0)], ...] = ()


class Profile(Section):
    models: tuple[str, ...]
    names: tuple[str, ...] = ()


class AcmeSettings(VendorSettings):
    """A vendor with every shape of field that a real one has."""

    environment: ClassVar[Mapping[str, str]] = {
        "ACME_LISTS": "listStrategy",
        "ACME_ROOT": "driverRoot",
        "ACME_SPECS": "passSpecs",
        "ACME_SKIP_INDEX": "filterDevices.index",
    }
    helm: ClassVar[Mapping[str, str]] = {"splitCount": "deviceSplitCount", "memoryScaling": "deviceMemoryScaling"}
    node_config: ClassVar[Mapping[str, str]] = {
        "operatingmode": "operatingMode",
        "devicesplitcount": "deviceSplitCount",
        "devicememoryscaling": "deviceMemoryScaling",
        "enablenumatopology": "enableNumaTopology",
        "filterdevices": "filterDevices",
    }

    count_name: str = Field("acme.example/card", alias="resourceCountName", description="What the kubelet counts.")
    split: int = Field(10, ge=1, le=1000, alias="deviceSplitCount", description="Sharers of a card.")
    scaling: float = Field(1.0, ge=0, le=100, alias="deviceMemoryScaling")
    numa: bool = Field(False, alias="enableNumaTopology")
    operating_mode: Literal["shared", "sliced"] = Field("shared", alias="operatingMode")
    lists: tuple[str, ...] = Field(("envvar",), alias="listStrategy")
    root: Path | None = Field(None, alias="driverRoot")
    specs: bool = Field(False, alias="passSpecs")
    filters: Filter = Field(default_factory=Filter, alias="filterDevices", description="Cards to leave out.")
    profiles: tuple[Profile, ...] = Field((), alias="profiles")


class ZetaSettings(VendorSettings):
    speed: int = 1


MODELS: Mapping[str, type[VendorSettings]] = {"acme": AcmeSettings, "zeta": ZetaSettings}


def settings_of(name: str) -> type[VendorSettings]:
    if name not in MODELS:
        raise UnknownVendorError(f"no vendor is named {name!r}", hint="choose from: acme, zeta")
    return MODELS[name]


class Loading:
    """Writes the files of one load, and loads them."""

    def __init__(self, directory: Path) -> None:
        self.own = directory / "config.yaml"
        self.device = directory / "device-config.yaml"
        self.node = directory / "config.json"

    def __call__(
        self,
        own: str | None = None,
        *,
        device: str | None = None,
        node: str | None = None,
        environment: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
        names: Sequence[str] = ("acme", "zeta"),
    ) -> Configuration:
        for path, text in ((self.own, own), (self.device, device), (self.node, node)):
            if text is not None:
                path.write_text(text)
        return load(
            config=None if own is None else self.own,
            device_config=None if device is None else self.device,
            node_config=None if node is None else self.node,
            overrides=overrides or {},
            environment={"NODE_NAME": "n1"} if environment is None else environment,
            vendor_settings=settings_of,
            vendor_names=names,
        )

    def problems(self, own: str | None = None, **rest: object) -> tuple[str, ...]:
        with pytest.raises(ConfigError) as caught:
            self(own, **rest)  # type: ignore[arg-type]  # the same keywords as above
        return caught.value.problems


@pytest.fixture
def loading(tmp_path: Path) -> Loading:
    return Loading(tmp_path)


@pytest.fixture(scope="session")
def acme() -> type[AcmeSettings]:
    return AcmeSettings
