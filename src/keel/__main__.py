"""`python -m keel`."""

from __future__ import annotations

from keel.cli import main

if __name__ == "__main__":
    main()
