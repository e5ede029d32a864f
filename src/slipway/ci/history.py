"""Which commits of a branch still need an image: all since the last published one that matter."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from slipway.build import tags
from slipway.build.git import Checkout

# What no image holds: a change of nothing else builds nothing.
IGNORED = ("deploy/*", "docs/*", ".gitea/*", "*.md")
# A branch that was away for long is not built commit by commit.
MOST = 50


def ignored(paths: Iterable[str]) -> bool:
    """Whether a change of these paths leaves every image as it is; no path at all does not."""
    paths = list(paths)
    return bool(paths) and all(
        any(
            fnmatchcase(path, pattern) and ("/" in pattern or "/" not in path)
            for pattern in IGNORED
        )
        for path in paths
    )


def pending(
    checkout: Checkout, published: str, there: Collection[str], branch: str, suffix: str
) -> tuple[str, ...]:
    """Commits to build, oldest first; HEAD is the last, where it is among them.

    Args:
        published: the commit that the branch's alias names, "" for none. One that is not before
            HEAD (the branch was forced) or not known counts as none, and HEAD alone is built.
        there: all tags of the repository; a commit with an image is not built again.
        branch: the branch's name.
        suffix: the variant's suffix in tags, "" for the default one.
    """
    head = checkout.commit()
    if published == head:
        return ()
    if published and checkout.is_ancestor(published, head):
        span = checkout.text("rev-list", "--first-parent", "--reverse", f"{published}..{head}")
        commits = span.split()[-MOST:]
    elif published and checkout.is_ancestor(head, published):
        # A newer push was faster; this one's commit gets its image all the same.
        commits = [head]
    else:
        commits = [head]
        if has_image(there, branch, head, suffix):
            return ()
        return (head,)
    return tuple(
        commit
        for commit in commits
        if not has_image(there, branch, commit, suffix) and not ignored(changed(checkout, commit))
    )


def changed(checkout: Checkout, commit: str) -> list[str]:
    """Paths that a commit changes against its first parent; of a first commit all of them."""
    words = ["diff-tree", "--root", "-r", "-m", "--first-parent", "--no-commit-id", "--name-only"]
    return [path for path in checkout.run(*words, "-z", commit).decode().split("\0") if path]


def has_image(there: Collection[str], branch: str, commit: str, suffix: str) -> bool:
    """Whether a commit has an immutable tag of CI among `there`."""
    return bool(tags_of(there, branch, commit, suffix))


def tags_of(there: Collection[str], branch: str, commit: str, suffix: str) -> list[str]:
    """The immutable tags that CI gave to a commit's image of one variant, oldest first."""
    stem = tags.stem(branch, commit, ci=True)
    found = []
    for tag in there:
        rest = tag.removeprefix(stem) if tag.startswith(stem) else ""
        moment, tail = rest[: len("YYYYMMDD-HHMM")], rest[len("YYYYMMDD-HHMM") :]
        if not moment:
            continue
        # `-2` is the number of a second image within one minute.
        number, _, more = tail.removeprefix("-").partition("-")
        if number.isdigit():
            tail = f"-{more}" if more else ""
        if tail == suffix:
            found.append(tag)
    return sorted(found)
