"""Reads the machine into an Inventory."""
