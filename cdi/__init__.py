"""Container Device Interface: specs of devices, what they add to a container, and how a runtime reads them.

It stands on the standard library alone, and knows neither Kubernetes nor a vendor nor the daemon. Only ``store``
touches the file system; all else are values and pure functions. ``README.md`` shows how to use it.
"""
