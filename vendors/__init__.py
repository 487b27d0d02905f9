"""One module or package for each vendor, found by its name. A module exports ``VENDOR`` and knows no other vendor."""
