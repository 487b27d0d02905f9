"""Snapshots for people and for other programs: tables, matrices, pictures, JSON. Values in, text out; no I/O."""

from hami_plugin.render.document import snapshot_json
from hami_plugin.render.heatmap import heat_map_svg
from hami_plugin.render.tables import aligned, device_table, topology_matrix

__all__ = ["aligned", "device_table", "heat_map_svg", "snapshot_json", "topology_matrix"]
