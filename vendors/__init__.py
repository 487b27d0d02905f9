"""One module or package for each vendor, found by its name. A module exports ``VENDOR`` and knows no other vendor.

A folder ``vendors`` elsewhere on Python's path belongs to it too, so that a vendor may come from another distribution.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
