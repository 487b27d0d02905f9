"""From an Allocate of the kubelet to a container's devices and limits, and the record of who holds what."""
