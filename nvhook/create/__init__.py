"""A container that is being created: what it asks for, and how it gets that."""
