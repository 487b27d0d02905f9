"""Environment variables as layers: those that a settings class declares, one layer each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from hami_plugin.config.documents import Keys
from hami_plugin.config.fields import field_at, takes_list
from hami_plugin.config.hami import Models
from hami_plugin.config.layers import Layer, Place, nested
from hami_plugin.config.settings import Settings

# HAMi parses these and then ignores them; somebody who sets one believes that it counts.
_DEAD = {
    "DEVICE_SPLIT_COUNT": "deviceSplitCount",
    "DEVICE_MEMORY_SCALING": "deviceMemoryScaling",
    "DEVICE_CORES_SCALING": "deviceCoreScaling",
    "DISABLE_CORE_LIMIT": "disableCoreLimit",
}


def environment_layers(environment: Mapping[str, str], models: Models) -> Iterator[Layer]:
    """Every declared variable that is set and not empty. Where a key holds a list, commas part its items."""
    yield from _declared(environment, Settings, Settings.environment, ())
    for vendor, model in models.items():
        yield from _declared(environment, model, model.environment, ("vendors", vendor))


def environment_warnings(environment: Mapping[str, str], models: Models) -> Iterator[str]:
    """Variables of HAMi's that are set, and that nothing reads."""
    read = {name for model in models.values() for name in model.environment}
    for name, key in _DEAD.items():
        if environment.get(name) and name not in read:
            yield f"environment: {name}: has no effect, nor has it in HAMi; set {key} in the device configuration"


def _declared(
    environment: Mapping[str, str], model: type[BaseModel], declared: Mapping[str, str], prefix: Keys
) -> Iterator[Layer]:
    for name, path in declared.items():
        text = environment.get(name, "").strip()
        if not text:
            continue
        target: Keys = tuple(path.split("."))
        field = field_at(model, target)
        value: object = text
        if field and takes_list(field):
            value = [part.strip() for part in text.split(",") if part.strip()]
        keys = (*prefix, *target)
        yield Layer(
            name="environment",
            values=nested(".".join(str(key) for key in keys), value),
            places={keys: Place(where="environment", path=name)},
        )
