"""The kinds of values that settings are made of."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

Seconds = Annotated[float, Field(gt=0, le=86_400)]


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path, beginning with /")
    return path


def _address(host: str) -> str:
    try:
        ip_address(host)
    except ValueError as error:
        raise ValueError("must be an IP address, as 0.0.0.0 or ::") from error
    return host


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Address = Annotated[str, AfterValidator(_address)]
DnsName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253)
]


class Section(BaseModel):
    """Frozen, and an unknown key is an error: a misspelt option must not silently do nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)
