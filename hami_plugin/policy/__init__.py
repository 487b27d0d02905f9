"""Decisions as pure functions of values: ids, preferred devices, who is asking, when a device is well again."""
