"""The API server: the ``Cluster`` port over aiohttp and plain JSON."""
