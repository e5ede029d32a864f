"""`keel bench serve | offline`."""

from __future__ import annotations

from keel.errors import ArgumentError

_USAGE = (
    "usage: keel bench serve|offline [OPTIONS]\n\n"
    "  serve     load on a server that speaks OpenAI's API (--base-url)\n"
    "  offline   the same load on the engine in this process (--model-path)\n\n"
    "`keel bench serve --help` says more."
)


def main(argv: list[str]) -> None:
    """Run one of them.

    Raises:
        ArgumentError: there is no such bench, or its flags cannot be meant.
        BenchError: nothing could be measured.
    """
    match argv:
        case ["serve", *rest]:
            from keel.bench.serve import main as serve

            serve(rest)
        case ["offline", *rest]:
            from keel.bench.offline import main as offline

            offline(rest)
        case ["-h" | "--help", *_]:
            print(_USAGE)
        case _:
            what = f"there is no bench {argv[0]!r}" if argv else "keel bench needs to know which"
            raise ArgumentError(what, "keel bench serve, or keel bench offline; each has --help")
