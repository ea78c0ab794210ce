"""Give containers NVIDIA GPUs."""

__version__ = "0.1.0"
