"""What engines call: the hook, the runtime, nvidia-container-cli."""
