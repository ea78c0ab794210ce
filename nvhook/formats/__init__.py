"""Bytes to values and back: OCI documents, ld.so.cache, ELF, /proc files. Pure: no I/O."""
