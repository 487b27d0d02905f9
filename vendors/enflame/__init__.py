"""Enflame GCUs: hard partitions (DRS), whole cards, and the shares by percentage of HAMi 2.7."""

from vendors.enflame.vendor import VENDOR

__all__ = ["VENDOR"]
