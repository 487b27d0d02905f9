"""Snapshots for people and programs: tables, matrices, pictures, JSON. Values in, text out; no I/O."""
