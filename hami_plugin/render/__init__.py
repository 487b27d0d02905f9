"""Snapshots for people and for other programs: tables, matrices, pictures, JSON. Values in, text out; no I/O."""

from hami_plugin.render.graph import link_graph_svg
from hami_plugin.render.heatmap import heat_map_svg
from hami_plugin.render.svg import links_document, snapshot_json
from hami_plugin.render.tables import DEVICE_RIGHT, aligned, device_rows, device_table, not_ready, topology_matrix

__all__ = [
    "DEVICE_RIGHT",
    "aligned",
    "device_rows",
    "device_table",
    "heat_map_svg",
    "link_graph_svg",
    "links_document",
    "not_ready",
    "snapshot_json",
    "topology_matrix",
]
