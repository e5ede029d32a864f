"""`python -m slipway`."""

from __future__ import annotations

from slipway.cli import main

if __name__ == "__main__":
    main()
