"""The job summary: one table of what a push gave, for people."""

from __future__ import annotations

from collections.abc import Iterable

from slipway.ci.results import Result

_HEAD = ("variant", "commit", "plan", "tag", "digest", "pushed", "seconds")


def markdown(
    results: Iterable[Result], archives: Iterable[str], repository: str, why_nothing: str = ""
) -> str:
    """The summary as Markdown.

    Args:
        archives: references of the archives that were published, and addresses of downloads.
        repository: where the images are, `host/name`.
        why_nothing: said where there is no result.
    """
    results, archives = list(results), list(archives)
    lines = ["## Images", ""]
    if not results:
        return "\n".join([*lines, f"Nothing was built: {why_nothing or 'nothing had to be'}.", ""])
    lines += [f"In `{repository}`:", "", _row(*_HEAD), _row(*["---"] * len(_HEAD))]
    for one in results:
        moved = one.facts.get("bytes_pushed")
        seconds = one.facts.get("seconds")
        lines.append(
            _row(
                one.variant,
                f"`{one.commit[:9]}`",
                f"**{one.plan}**: {one.why}",
                f"`{one.tag}`" if one.tag else "**no image**; the log of its build says why",
                f"`{one.digest[:19]}`" if one.digest else "",
                "" if moved is None else f"{moved / 1e6:.2f} MB",
                "" if seconds is None else f"{seconds:.2f}",
            )
        )
    if archives:
        links = (f"- <{one}>" if "://" in one else f"- `{one}`" for one in archives)
        lines += ["", "## Archives", "", *links]
    return "\n".join([*lines, ""])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
