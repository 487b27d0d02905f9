"""Everything that talks to the kubelet: its device plugin API, its PodResources API, and the sockets both live on.

An adapter. It knows sockets, streams and registration, and nothing of what an id stands for. ``v1beta1`` and
``podresources.v1`` are generated from ``proto/``.
"""
