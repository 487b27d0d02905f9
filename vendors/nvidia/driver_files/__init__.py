"""The files of NVIDIA's driver that a container needs: where a host keeps them, which they are, how they are mounted.

Everything here reads the file system, and nothing here runs a program or asks the driver.
"""
