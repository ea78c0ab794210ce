"""What a container asks for, what a host has, and the edits that follow: pure."""
