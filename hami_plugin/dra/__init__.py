"""Dynamic Resource Allocation: what is published of a vendor's devices, and claims made ready for pods."""
