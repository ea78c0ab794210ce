"""What is wrong with this host or this container: each check says what it saw and what to do."""
