"""Names of images: valid, told apart, and never too long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slipway.build.tags import MAX_LENGTH, alias, deps_tag, image_tag, slug, stem
from slipway.image.reference import parse

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def tag(branch: str = "main", **changes: object) -> str:
    settings: dict[str, object] = {"ci": False, "moment": MOMENT, "variant": "cpu"}
    settings |= {"default_variant": "cpu", **changes}
    return image_tag(branch, COMMIT, **settings)  # type: ignore[arg-type]


def test_a_tag_tells_branch_commit_origin_and_minute() -> None:
    assert tag() == "main-012345678-local-20260102-0304"
    assert tag(ci=True, variant="cu130") == "main-012345678-ci-20260102-0304-cu130"
    assert tag(dirty=True, number=2) == "main-012345678-local-20260102-0304-2-dirty"


def test_the_minute_is_written_in_utc() -> None:
    east = MOMENT.astimezone(timezone(timedelta(hours=9)))
    assert tag(moment=east) == tag()


def test_aliases_and_deps_images() -> None:
    assert alias("main", ci=True, variant="cpu", default_variant="cpu") == "main-latest"
    assert alias("main", ci=False, variant="cu130", default_variant="cpu") == (
        "main-latest-local-cu130"
    )
    assert deps_tag("cpu", "a" * 64) == "deps-cpu-aaaaaaaaaaaa"


@pytest.mark.parametrize("branch", ["main", "release-1.2", "feature_x"])
def test_a_branch_that_fits_stays_as_it_is(branch: str) -> None:
    assert slug(branch) == branch


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Feature/X", "feature-x"),
        ("feature/x", "feature-x"),
        ("feature/x", "Feature/X"),
        ("a" * 100 + "1", "a" * 100 + "2"),
        ("größe", "größer"),
        ("修复", "重构"),
    ],
)
def test_branches_that_look_alike_stay_apart(one: str, other: str) -> None:
    assert slug(one) != slug(other)
    assert slug(one).lower() != slug(other).lower()


@given(st.text(min_size=1))
@example("0" * 61)
@example("0" * 60)
def test_any_branch_gives_a_valid_lower_case_tag(branch: str) -> None:
    made = tag(branch, dirty=True, number=99, variant="rocm720-mi35x-long-name")
    assert len(made) <= MAX_LENGTH
    assert made == made.lower()
    assert parse(f"team/keel:{made}").tag == made


def test_all_tags_of_one_commit_begin_alike() -> None:
    begin = stem("Feature/X", COMMIT, ci=False)
    assert all(
        tag("Feature/X", number=n, dirty=d).startswith(begin) for n in (1, 2) for d in (0, 1)
    )
