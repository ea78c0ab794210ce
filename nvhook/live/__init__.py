"""A container that runs: giving it GPUs, taking them away, and who has which."""
