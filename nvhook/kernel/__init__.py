"""Namespaces, rootfs, mounts, cgroups, BPF: knows neither NVIDIA nor OCI."""
