"""What names and comments say of a deployment, held against what its flags do.

A comment is read for a few plain statements (GPUs, ports, bootstrap ports, container, how many
engines, what is absent, "the only difference to FILE is …"), in English and in Chinese; anything
else that it says is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from keel.args.knowledge import Launch
from slipway.deploy.check import Found, Rule, Severity
from slipway.deploy.compose import ComposeFile
from slipway.deploy.rules.contrast import contrast
from slipway.deploy.scene import Scene, Seen
from slipway.deploy.sets import SLOT, words_of

_SIZE = re.compile(r"(\d{1,2})?(tp|dp|cp)(\d{1,2})?(?:x(\d{1,2}))?(dspark|test)?")
_WIDE = str.maketrans("：，；。（）×、＝", ":,;.()x,=")
_LIST = r"\d{1,3}(?:[,-]\d{1,3})*"
_PORT = r"(?:端口|[Pp]orts?)"
_CLAUSE = r"(?:^|[,;.(]\s*)"


def _size(launch: Launch, kind: str) -> int:
    if kind == "tp":
        return launch.tp
    if kind == "cp":
        return launch.prefill_cp
    return max(launch.attention_dp, launch.replicas)


# --- names -----------------------------------------------------------------------------------


def _names(scene: Scene) -> Iterator[Found]:
    host = scene.host_gpus or max(8, scene.least_gpus)
    for file in scene.files:
        engines = [(seen, launch) for seen, launch in scene.engines() if seen.file is file]
        if not engines:
            continue
        told: set[str] = set()
        name = words_of(file.path.name)
        for reason in _contradictions(name, engines, host, of_file=True):
            told.add(reason)
            yield Found(
                engines[0][0].name if len(engines) == 1 else "",
                f"the name {file.path.name} says {reason}",
                "rename it, or give the engine what the name promises",
                file.path,
            )
        for seen, launch in engines:
            for title, text in (("container", seen.service.container), ("service", seen.name)):
                own = _contradictions(words_of(text), [(seen, launch)], host, of_file=False)
                for reason in own:
                    if reason not in told:
                        told.add(reason)
                        yield Found(
                            seen.name,
                            f"the {title}'s name {text} says {reason}",
                            "rename it, or give the engine what the name promises",
                            file.path,
                        )


def _contradictions(
    words: Sequence[str], engines: Sequence[tuple[Seen, Launch]], host: int, *, of_file: bool
) -> Iterator[str]:
    launches = [launch for _, launch in engines]
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        if match := _SIZE.fullmatch(word):
            yield from _wrong_size(match, word, launches)
        elif match := SLOT.fullmatch(word):
            taken = sorted({gpu for seen, _ in engines for gpu in seen.gpus})
            slot = _slot(match[1], match[2], host)
            if slot and not set(taken) <= set(slot):
                who = "engines take" if len(engines) > 1 else "engine takes"
                yield f"{word} (GPUs {_list(slot)}), the {who} {_list(taken)}"
        elif word in ("prefill", "decode") or (of_file and word in ("p", "d")):
            role = {"p": "prefill", "d": "decode"}.get(word, word)
            if not any(launch.role == role for launch in launches):
                yield f"{word}, no engine has the role {role}"
        else:
            yield from _wrong_feature(word, following, launches)
        if word.endswith("dspark") and not any(each.drafter == "DSPARK" for each in launches):
            yield f"{word}, no engine drafts with DSPARK"


def _slot(letter: str, digits: str, host: int) -> list[int]:
    """The GPUs that a slot means; [] for a word that is none."""
    if letter == "g":
        return [int(digit) for digit in digits]
    count = int(digits)
    if not 0 < count <= host:
        return []
    return list(range(count) if letter == "f" else range(host - count, host))


def _list(gpus: Sequence[int]) -> str:
    return ", ".join(map(str, gpus))


def _wrong_size(match: re.Match[str], word: str, launches: Sequence[Launch]) -> Iterator[str]:
    kind = match[2]
    wanted = int(match[3]) if match[3] else None
    if kind == "cp":
        # A decode engine never has prefill CP: the word is its prefill engines'.
        launches = [launch for launch in launches if launch.role != "decode"]
    sizes = [_size(launch, kind) for launch in launches]
    right = [size for size in sizes if (size == wanted if wanted else size > 1)]
    count = int(match[1] or match[4] or 0)
    if sizes and (len(right) != count if count else not right):
        if count and right:
            yield f"{word}, {len(right)} engine(s) have {kind} {wanted or 'above 1'}"
        else:
            yield f"{word}, the engine has {kind} {max(sizes)}"


def _wrong_feature(word: str, following: str, launches: Sequence[Launch]) -> Iterator[str]:
    replay = any(launch.has("enable-decoder-swa-bounded-replay") for launch in launches)
    if word == "replay" and following in ("on", "off") and replay != (following == "on"):
        yield f"replay-{following}, the flag is {'there' if replay else 'not there'}"
    elif word in ("nr", "noreplay") and replay:
        yield f"{word} (no replay), the flag is there"
    elif word == "l3" and not any(launch.has("hicache-storage-backend") for launch in launches):
        yield "l3, no engine has --hicache-storage-backend"
    elif word == "nocap" and any(launch.has("max-running-requests") for launch in launches):
        yield "nocap, --max-running-requests is there"
    elif word == "vision" and all(launch.vision_off for launch in launches):
        yield "vision, and vision is off"


# --- comments --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Spoken:
    """A comment's line with wide punctuation made narrow."""

    line: int
    text: str


def _comments(scene: Scene) -> Iterator[Found]:
    for file in scene.files:
        engines = [seen for seen in scene.services if seen.file is file and seen.command]
        if not engines:
            continue
        for comment in file.comments:
            spoken = _Spoken(comment.line, comment.text.translate(_WIDE))
            for service, reason in _spoken_wrong(spoken.text, engines, file):
                yield Found(
                    service,
                    f"the comment says {reason}",
                    "correct the comment, or what it describes",
                    file.path,
                    line=spoken.line,
                )
        for line, reason in contrast(file, scene):
            yield Found(
                "",
                reason,
                "make the two alike, or say what else differs",
                file.path,
                line=line,
            )


def _spoken_wrong(
    text: str, engines: Sequence[Seen], file: ComposeFile
) -> Iterator[tuple[str, str]]:
    yield from _gpus(text, engines)
    yield from _ports(text, engines)
    yield from _counts(text, engines)
    yield from _absent(text, engines)
    for name in re.findall(rf"{_CLAUSE}(?:容器|container)\s+([A-Za-z0-9][\w.-]+)", text):
        if name not in {own for seen in engines for own in (seen.service.container, seen.name)}:
            yield "", f"container {name}, the file has none of that name"
    for name in re.findall(rf"{_CLAUSE}project\s+([\w-]+)", text):
        if file.project and file.project != name:
            yield "", f"project {name}, the file's name is {file.project}"


def _called(label: str, engines: Sequence[Seen]) -> Seen | None:
    """The engine that a label means: a service's name, or the letter of a role that one has."""
    for seen in engines:
        if seen.name.lower() == label.lower():
            return seen
    role = {"p": "prefill", "d": "decode"}.get(label.lower())
    having = [seen for seen in engines if role and seen.launch and seen.launch.role == role]
    return having[0] if len(having) == 1 else None


def _gpus(text: str, engines: Sequence[Seen]) -> Iterator[tuple[str, str]]:
    said: list[tuple[Seen | None, str]] = []
    for run in re.findall(rf"GPUs?:\s*((?:[A-Za-z]\w*={_LIST}\s*)+)", text):
        pairs = re.findall(rf"(\w+)=({_LIST})", run)
        said += [(_called(label, engines), gpus) for label, gpus in pairs]
    for label, gpus in re.findall(rf"\b([A-Za-z]\w*)=GPUs?\s*({_LIST})", text):
        said.append((_called(label, engines), gpus))
    for run in re.findall(rf"{_CLAUSE}GPUs?:?\s*((?:{_LIST}\([A-Za-z]\w*\)/?)+)", text):
        pairs = re.findall(rf"({_LIST})\((\w+)\)", run)
        said += [(_called(label, engines), gpus) for gpus, label in pairs]
        called = [label for _, label in pairs if _called(label, engines)]
        for gpus, label in pairs:
            if called and label not in called:
                names = ", ".join(seen.name for seen in engines)
                yield "", f"GPU {gpus} for {label}, the services are called {names}"
    if len(engines) == 1:
        for gpus in re.findall(rf"{_CLAUSE}GPUs?:?\s*({_LIST})(?![\d(=])", text):
            said.append((engines[0], gpus))
    for seen, gpus in said:
        if seen is not None and seen.gpus and set(seen.gpus) != _numbers(gpus):
            yield seen.name, f"GPU {gpus}, the engine takes {', '.join(map(str, seen.gpus))}"


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _ports(text: str, engines: Sequence[Seen]) -> Iterator[tuple[str, str]]:
    said: list[tuple[Seen | None, str]] = []
    for kind, run in re.findall(
        rf"(bootstrap(?:\s*{_PORT})?|{_PORT})\s*:\s*((?:[A-Za-z]\w*=\d{{2,5}}\s*)+)", text
    ):
        for label, port in re.findall(r"(\w+)=(\d+)", run):
            seen = _called(label, engines)
            if not kind.startswith("bootstrap"):
                said.append((seen, port))
            elif seen and seen.launch and seen.launch.bootstrap_port != int(port):
                yield seen.name, f"bootstrap port {port}, it is {seen.launch.bootstrap_port}"
    both = rf"\b([A-Za-z]\w*)=GPUs?\s*{_LIST}\s*{_PORT}\s*(\d{{2,5}})"
    for label, port in re.findall(both, text):
        said.append((_called(label, engines), port))
    for run in re.findall(rf"{_CLAUSE}{_PORT}:?\s*(\d{{2,5}}(?:/\d{{2,5}})*)(?![\d=])", text):
        ports = {int(port) for port in run.split("/")}
        if len(engines) == 1 and len(ports) == 1:
            said.append((engines[0], run))
        elif len(ports) == len(engines):
            listening = {seen.listens for seen in engines}
            if None not in listening and listening != ports:
                yield (
                    "",
                    f"ports {run}, the engines listen on "
                    + "/".join(map(str, sorted(port for port in listening if port is not None))),
                )
    for seen, port in said:
        if seen is None or seen.listens is None:
            continue
        open_ = {seen.listens, *(each.published for each in seen.service.ports)}
        if int(port) not in open_:
            yield seen.name, f"port {port}, the engine listens on {seen.listens}"


def _counts(text: str, engines: Sequence[Seen]) -> Iterator[tuple[str, str]]:
    launches = [seen.launch for seen in engines if seen.launch]
    for count, kind, size in re.findall(r"\b(\d{1,2})\s*x\s*(tp|cp|dp)(\d{1,2})\b", text):
        having = sum(_size(launch, kind) == int(size) for launch in launches)
        if having != int(count):
            yield "", f"{count} x {kind}{size}, {having} engine(s) of the file are"
    if re.search(r"单实例|single[- ]instance", text) and len(engines) > 1:
        yield "", f"a single instance, the file starts {len(engines)} engines"


_ABSENT: dict[str, Callable[[Launch], bool]] = {
    "l3": lambda launch: launch.has("hicache-storage-backend"),
    "hicache l3": lambda launch: launch.has("hicache-storage-backend"),
    "hicache": lambda launch: launch.has("enable-hierarchical-cache"),
    "pd": lambda launch: bool(launch.role),
    "cp": lambda launch: launch.prefill_cp > 1,
    "dspark": lambda launch: launch.drafter == "DSPARK",
    "replay": lambda launch: launch.has("enable-decoder-swa-bounded-replay"),
    "engram": lambda launch: launch.switched("SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE"),
}


def _absent(text: str, engines: Sequence[Seen]) -> Iterator[tuple[str, str]]:
    words = "hicache l3|hicache|l3|pd|cp|dspark|replay|engram"
    pattern = rf"{_CLAUSE}(?:无|关|no |without )\s*({words})\b"
    for word in re.findall(pattern, text, re.IGNORECASE):
        for seen in engines:
            if seen.launch and _ABSENT[word.lower()](seen.launch):
                yield seen.name, f"no {word}, the engine has it"


RULES: tuple[Rule, ...] = (
    Rule(
        "name-claims",
        Severity.WARNING,
        "a name of a file, container or service that promises what the flags do not do",
        "the b300 site's rule: dockerserve-<topology>-<feature>-<slot>",
        _names,
    ),
    Rule(
        "comment-claims",
        Severity.WARNING,
        "a comment that says otherwise than the file does",
        "what operators read before they start a file",
        _comments,
    ),
)
