"""What a ResourceClaim or its DeviceClass may say to a vendor's devices beside amounts: a versioned object.

It arrives as somebody has written it, and the API server checks nothing of it: whatever is unknown is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KIND = "DeviceParameters"
VERSION = "v1"
_SHOWN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One field: the environment variable that says it to the container, and for each value that may be written, as
    JSON has it, what the variable says then.

    ``granted`` values are for administrators: a DeviceClass may have them, a claim may not.
    """

    variable: str
    values: Mapping[str | int | bool, str]
    granted: frozenset[str | int | bool] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """All fields that a vendor knows, by their names."""

    fields: Mapping[str, Parameter] = field(default_factory=dict)

    def read(self, document: object, driver: str, *, by_class: bool) -> Mapping[str, str]:
        """The environment that an object stands for. ``ValueError`` says what is wrong with it, and what is right."""
        if not self.fields:
            raise ValueError(f"{driver} knows no parameters; take the entry out of config, amounts are capacity")
        if not isinstance(document, Mapping):
            raise ValueError("parameters are no object")  # noqa: TRY004  # what is read is wrong, not the program
        version, kind = document.get("apiVersion"), document.get("kind")
        if (version, kind) != (f"{driver}/{VERSION}", KIND):
            raise ValueError(
                f"parameters are {_shown(kind)} of {_shown(version)}; write kind: {KIND} and apiVersion: "
                f"{driver}/{VERSION}"
            )
        found: dict[str, str] = {}
        for name, value in document.items():
            if name not in ("apiVersion", "kind"):
                found |= self._one(str(name), value, by_class=by_class)
        return found

    def _one(self, name: str, value: object, *, by_class: bool) -> Mapping[str, str]:
        known = self.fields.get(name)
        if known is None:
            raise ValueError(f"parameters have {_shown(name)}, which is unknown; there are {', '.join(self.fields)}")
        for one, text in known.values.items():
            if type(one) is type(value) and one == value:
                if one in known.granted and not by_class:
                    raise ValueError(f"parameters have {name}: {_shown(value)}, which only a DeviceClass may have")
                return {known.variable: text}
        choices = ", ".join(_shown(one) for one in known.values)
        raise ValueError(f"parameters have {name}: {_shown(value)}; choose from {choices}")


NO_PARAMETERS = Parameters()


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)[:_SHOWN]
