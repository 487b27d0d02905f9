"""Values only: what the node has, what a pod asks for, what was granted. No I/O, no clock, no logger."""
