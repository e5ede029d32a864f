"""What a workflow does around builds: preflight, catch-up, archives, summary, releases."""

from __future__ import annotations
