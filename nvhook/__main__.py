"""``python -m nvhook``."""

from nvhook.cli import run

if __name__ == "__main__":
    run()
