"""What the build asks of git, as values; nothing here writes into the working tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from slipway.errors import RepositoryError, ToolMissingError


@dataclass(frozen=True)
class TreeEntry:
    """One entry of a git tree: git's mode (`100644`, `100755`, `120000`, `040000`), id, size."""

    path: str
    mode: str
    object_id: str
    size: int


@dataclass(frozen=True)
class Head:
    """What is checked out; `branch` is "" where HEAD is on none."""

    commit: str
    branch: str
    dirty: bool


@dataclass(frozen=True)
class Checkout:
    """A git working tree, and environment variables for git where it looks at a scratch index.

    What it says of HEAD is one moment's: take a new one to look again.
    """

    root: Path
    env: tuple[tuple[str, str], ...] = ()

    def run(self, *words: str, input_bytes: bytes | None = None) -> bytes:
        """Standard output of `git <words>`.

        Raises:
            RepositoryError: git refused; its message is in the error.
            ToolMissingError: git is not installed.
        """
        done = self._git(*words, input_bytes=input_bytes)
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().splitlines()
            raise RepositoryError(f"git {words[0]}: {reason[-1] if reason else done.returncode}")
        return done.stdout

    def _git(
        self, *words: str, input_bytes: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                ["git", "-c", "core.quotepath=off", *words],
                cwd=self.root,
                env={**os.environ, **dict(self.env), "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
                input=input_bytes,
                stdin=subprocess.DEVNULL if input_bytes is None else None,
                capture_output=True,
            )
        except FileNotFoundError as error:
            raise ToolMissingError("git is not installed", "apt-get install git") from error

    def text(self, *words: str) -> str:
        """Standard output of `git <words>` as stripped text."""
        return self.run(*words).decode().strip()

    @cached_property
    def head(self) -> Head:
        """Commit, branch and state of the working tree, as one look at them found it.

        Raises:
            RepositoryError: there is no commit yet.
        """
        words = ["status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal"]
        records = self.run(*words).decode(errors="surrogateescape").split("\0")
        facts = dict(r[2:].split(" ", 1) for r in records if r.startswith("# "))
        commit, branch = facts["branch.oid"], facts["branch.head"]
        if commit == "(initial)":
            raise RepositoryError(
                f"{self.root} has no commit yet, and an image is named after its commit",
                "git add -A && git commit -m 'First commit'",
            )
        dirty = any(record and not record.startswith("# ") for record in records)
        return Head(commit, "" if branch == "(detached)" else branch, dirty)

    def commit(self) -> str:
        """The full id of HEAD."""
        return self.head.commit

    def commit_time(self) -> int:
        """Seconds since 1970 at which HEAD was committed."""
        return int(self.text("show", "-s", "--format=%ct", "HEAD"))

    def branch(self) -> str:
        """The branch's name; where HEAD is on none the one that CI names, else "detached"."""
        name = os.environ.get("SLIPWAY_BRANCH") or self.head.branch
        return name or os.environ.get("GITHUB_REF_NAME") or "detached"

    def is_dirty(self) -> bool:
        """Whether anything that git does not ignore differs from HEAD."""
        return self.head.dirty

    def is_ancestor(self, older: str, newer: str) -> bool | None:
        """Whether commit `older` is `newer` or before it; None where one is not known here."""
        pair = (older, newer)
        if pair not in self._ancestry:
            done = self._git("merge-base", "--is-ancestor", older, newer)
            self._ancestry[pair] = {0: True, 1: False}.get(done.returncode)
        return self._ancestry[pair]

    def knows(self, commits: Iterable[str]) -> list[bool]:
        """For each commit, full or short, whether it is here."""
        wanted = "".join(f"{commit}^{{commit}}\n" for commit in commits).encode()
        answers = self.run("cat-file", "--batch-check", input_bytes=wanted).splitlines()
        return [not answer.endswith((b" missing", b" ambiguous")) for answer in answers]

    def fetch(self, branch: str) -> bool:
        """Learn what `origin` has on a branch since; False where it cannot be asked."""
        reference = f"+refs/heads/{branch}:refs/remotes/origin/{branch}"
        done = self._git("fetch", "--quiet", "--no-tags", "origin", reference)
        if done.returncode == 0:
            self._ancestry.clear()
        return done.returncode == 0

    def since(self, commit: str, branch: str) -> list[str]:
        """Commits of a branch, as origin had it last, that come after `commit`; newest first."""
        for name in (f"refs/remotes/origin/{branch}", f"refs/heads/{branch}"):
            if self._git("rev-parse", "--quiet", "--verify", name).returncode == 0:
                words = ["rev-list", "--topo-order", "--ancestry-path", f"{commit}..{name}"]
                return self.text(*words).split()
        return []

    @cached_property
    def _ancestry(self) -> dict[tuple[str, str], bool | None]:
        return {}

    @cached_property
    def _folders(self) -> tuple[Path, Path]:
        """git's own folder, and that of its objects."""
        words = ["rev-parse", "--path-format=absolute", "--git-dir", "--git-path", "objects"]
        own, objects = self.text(*words).splitlines()
        return Path(own), Path(objects)

    @contextmanager
    def snapshot(self, path: str) -> Iterator[tuple[Checkout, str]]:
        """The working tree below `path` as a git tree: a checkout to ask, and the tree's name.

        Changed and untracked files count, ignored ones do not. Objects go to a scratch folder, so
        the repository itself stays as it was.
        """
        if not (self.root / path).is_dir():
            raise RepositoryError(f"there is no source tree {path} in {self.root}")
        if not self.head.dirty:
            # HEAD has it all, and what is read from its objects cannot change meanwhile.
            yield self, f"HEAD:{path.rstrip('/')}"
            return
        git_dir, objects = self._folders
        with tempfile.TemporaryDirectory(prefix="slipway-index-") as scratch:
            index = Path(scratch, "index")
            if (git_dir / "index").exists():
                shutil.copy2(git_dir / "index", index)
            Path(scratch, "objects").mkdir()
            checkout = Checkout(
                self.root,
                (
                    ("GIT_INDEX_FILE", str(index)),
                    ("GIT_OBJECT_DIRECTORY", str(Path(scratch, "objects"))),
                    ("GIT_ALTERNATE_OBJECT_DIRECTORIES", str(objects)),
                ),
            )
            checkout.run("add", "--all", "--", path)
            yield checkout, checkout.text("write-tree", f"--prefix={path.rstrip('/')}/")

    def ls_tree(self, tree: str, *, recursive: bool = False) -> list[TreeEntry]:
        """Entries of a tree, in git's order."""
        words = ["ls-tree", "-z", "--long", *(["-r"] if recursive else []), tree]
        entries = []
        for line in self.run(*words).split(b"\0"):
            if line:
                head, _, path = line.partition(b"\t")
                mode, _, object_id, size = head.decode().split()
                entries.append(
                    TreeEntry(path.decode(), mode, object_id, 0 if size == "-" else int(size))
                )
        return entries

    def blobs(self, object_ids: list[str]) -> Iterator[bytes]:
        """The contents of blobs, in the order asked for, by one git process."""
        request = "".join(f"{object_id}\n" for object_id in object_ids).encode()
        answer = self.run("cat-file", "--batch", input_bytes=request)
        position = 0
        for object_id in object_ids:
            end = answer.index(b"\n", position)
            found, kind, size = answer[position:end].decode().split()
            if found != object_id or kind != "blob":
                raise RepositoryError(f"git object {object_id} is a {kind}, not a blob")
            start = end + 1
            yield answer[start : start + int(size)]
            position = start + int(size) + 1


def find_checkout(start: Path) -> Checkout:
    """The checkout around `start`.

    Raises:
        RepositoryError: there is none; images are named after commits.
    """
    try:
        root = Checkout(start).text("rev-parse", "--show-toplevel")
    except RepositoryError as error:
        if "dubious ownership" in error.what:
            raise
        raise RepositoryError(
            f"{start} is not in a git checkout, and an image is named after its commit",
            "clone the repository, or: git init && git add -A && git commit -m 'First commit'",
        ) from error
    return Checkout(Path(root))
