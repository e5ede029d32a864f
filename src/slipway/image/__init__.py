"""What an image is: references, descriptors, manifests, layers, and where their bytes live."""

from __future__ import annotations
