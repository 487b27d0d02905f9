"""Vendors are found by their names, and imported when somebody asks for them."""

from __future__ import annotations

import importlib
import pkgutil

from hami_plugin.errors import UnknownVendorError
from hami_plugin.vendor.exports import Vendor


def vendor_names() -> tuple[str, ...]:
    """Every module in ``vendors``, sorted."""
    package = importlib.import_module("vendors")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


def load_vendor(name: str) -> Vendor:
    """Import ``vendors.<name>`` and hand out its ``VENDOR``."""
    names = vendor_names()
    if name not in names:
        raise UnknownVendorError(f"no vendor is named {name!r}", hint=f"choose from: {', '.join(names)}")
    vendor = getattr(importlib.import_module(f"vendors.{name}"), "VENDOR", None)
    if not isinstance(vendor, Vendor) or vendor.name != name:
        raise UnknownVendorError(
            f"vendors.{name} exports no Vendor named {name!r}", hint="see docs/architecture.md, 'A vendor'"
        )
    return vendor
