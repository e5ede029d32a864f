"""Descriptors: read from what strangers send, so nothing in them is taken on trust."""

from __future__ import annotations

import pytest

from slipway.errors import IntegrityError
from slipway.image.descriptor import LAYER_GZIP, Descriptor, Platform

GOOD = {"mediaType": LAYER_GZIP, "digest": f"sha256:{'a' * 64}", "size": 5}


def test_a_descriptor_survives_its_json_form() -> None:
    blob = Descriptor(
        LAYER_GZIP, f"sha512:{'b' * 128}", 0, {"k": "v"}, Platform("linux", "arm64", "v8"), "t"
    )
    assert Descriptor.from_json(blob.to_json()) == blob


@pytest.mark.parametrize(
    "spoiled",
    [
        {"digest": "sha256:../../../etc/passwd"},
        {"digest": f"sha256:{'A' * 64}"},
        {"digest": f"md5:{'a' * 32}"},
        {"digest": None},
        {"size": -1},
        {"size": "x"},
        {"size": None},
        {"annotations": 5},
        {"platform": {"os": "linux"}},
    ],
)
def test_what_is_no_descriptor_is_refused(spoiled: dict[str, object]) -> None:
    with pytest.raises(IntegrityError, match="not a content descriptor"):
        Descriptor.from_json({**GOOD, **spoiled})
