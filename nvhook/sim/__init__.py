"""A simulated driver: test GPU plumbing on a machine without a GPU."""
