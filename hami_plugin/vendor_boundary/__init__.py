"""A driver in a process of its own: what a vendor's library does to its process, it does to nobody else.

``driver`` is this side of the pipe, ``child`` the other, and ``messages`` are all that passes between them.
"""
