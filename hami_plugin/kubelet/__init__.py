"""Everything that talks to the kubelet: its device plugin API, its PodResources API, and the sockets both live on.

An adapter. It knows sockets, streams and registration, and nothing of what an id stands for. ``api`` is
generated from ``proto/``.
"""
