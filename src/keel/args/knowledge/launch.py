"""A server's command line and environment as values, read without starting or importing anything.

Reads `keel serve` and SGLang's `sglang serve` alike, and never refuses: what cannot be meant is
kept in `complaints`. Flags that it does not know are kept too: engines differ by their version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

DEFAULT_PORT = 30000
DEFAULT_BOOTSTRAP_PORT = 8998
DEFAULT_TRANSFER_BACKEND = "mooncake"
# A command has a few dozen words; beyond these nothing is read.
MAX_WORDS = 4096
MAX_COMPLAINTS = 16

_NUMBER = re.compile(r"-?[0-9]{1,9}")
_TRUE = frozenset(("1", "true", "yes", "y", "on", "t"))


@dataclass(frozen=True)
class Complaint:
    """What cannot be meant, and what to do."""

    what: str
    fix: str


@dataclass(frozen=True)
class Launch:
    """One engine as it would be started.

    Attributes:
        program: `keel` or `sglang`.
        flags: canonical name without dashes -> its words, () for a switch; the last one counts.
        env: the container's environment, as far as the file gives it.
        complaints: words that no version of the engine could take.
    """

    program: str
    flags: Mapping[str, tuple[str, ...]]
    env: Mapping[str, str] = field(default_factory=dict)
    complaints: tuple[Complaint, ...] = ()

    def has(self, name: str) -> bool:
        """Whether the flag is there; a `--no-` form takes it away."""
        return name in self.flags

    def text(self, name: str, default: str = "") -> str:
        """The flag's first word."""
        words = self.flags.get(name)
        return words[0] if words else default

    def number(self, name: str, default: int) -> int:
        """The flag's value where it is a whole number, else the default."""
        text = self.text(name)
        return int(text) if _NUMBER.fullmatch(text) else default

    def switched(self, variable: str) -> bool:
        """Whether an environment variable says yes."""
        return self.env.get(variable, "").strip().lower() in _TRUE

    def json(self, name: str) -> Mapping[str, object]:
        """The flag's JSON object; {} where it has none."""
        try:
            value = json.loads(self.text(name) or "{}")
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def port(self) -> int | None:
        """Where it listens; None where that is a variable without a value."""
        if not self.has("port"):
            return DEFAULT_PORT
        text = self.text("port")
        return int(text) if re.fullmatch(r"[0-9]{1,5}", text) else None

    @property
    def model(self) -> str:
        """What it loads, "" where it does not say."""
        return self.text("model-path")

    @property
    def role(self) -> str:
        """`prefill`, `decode`, or "" for an engine that does both."""
        mode = self.text("disaggregation-mode")
        return mode if mode in ("prefill", "decode") else ""

    @property
    def bootstrap_port(self) -> int:
        """Where a prefill engine meets decode engines."""
        return self.number("disaggregation-bootstrap-port", DEFAULT_BOOTSTRAP_PORT)

    @property
    def transfer_backend(self) -> str:
        """What moves the KV cache from prefill to decode."""
        return self.text("disaggregation-transfer-backend", DEFAULT_TRANSFER_BACKEND)

    @property
    def tp(self) -> int:
        """Devices of one replica and pipeline stage."""
        return self.number("tp-size", 1)

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return self.number("pp-size", 1)

    @property
    def nodes(self) -> int:
        """Hosts that share the engine."""
        return max(1, self.number("nnodes", 1))

    @property
    def attention_dp(self) -> int:
        """Groups of ranks whose attention serves requests of their own; 1 is one group."""
        if self.has("attn-dp-size"):
            return self.number("attn-dp-size", 1)
        return self.number("dp-size", 1) if self.has("enable-dp-attention") else 1

    @property
    def replicas(self) -> int:
        """Copies of the whole model behind one port (`--dp-size` without DP attention)."""
        return 1 if self.has("enable-dp-attention") else max(1, self.number("dp-size", 1))

    @property
    def prefill_cp(self) -> int:
        """Ranks that share one prompt's prefill; it takes what attention DP leaves of tp."""
        if self.has("enable-prefill-cp"):
            return max(1, self.tp // max(1, self.attention_dp))
        return max(1, self.number("attn-cp-size", 1))

    @property
    def attention_tp(self) -> int:
        """Ranks that share one request's attention heads."""
        return max(1, self.tp // max(1, self.attention_dp * self.prefill_cp))

    @property
    def devices(self) -> int:
        """GPUs that it takes of this host."""
        return min(4096, max(1, self.tp * self.pp * self.replicas // self.nodes))

    @property
    def drafter(self) -> str:
        """The speculative algorithm in capitals, "" for none."""
        return self.text("speculative-algorithm").upper()

    @property
    def vision_off(self) -> bool:
        """Whether the model is started as a text model."""
        layers = self.json("json-model-override-args").get("vision_n_layers")
        return layers == 0 or self.has("language-model-only")

    @cached_property
    def is_v4(self) -> bool:
        """Whether the model's name says DeepSeek V4 or one of its successors."""
        return re.search(r"deepseek[-_.]?v4", self.model, re.IGNORECASE) is not None

    @cached_property
    def is_v41(self) -> bool:
        """Whether the model's name says DeepSeek V4.1."""
        return re.search(r"deepseek[-_.]?v4[.p]1", self.model, re.IGNORECASE) is not None


def read_launch(program: str, words: Sequence[str], env: Mapping[str, str]) -> Launch:
    """The engine that the words after `serve` start. Never raises."""
    names = _names(program)
    flags: dict[str, tuple[str, ...]] = {}
    complaints: list[Complaint] = []
    words = words[:MAX_WORDS]
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--") or word == "--":
            continue
        written, equals, value = word.partition("=")
        name, off = _canonical(written[2:], names)
        following = _following(words, index)
        kind = names.get(name, "")
        if off:
            flags.pop(name, None)
            continue
        taken: Sequence[str] = ()
        if equals:
            taken = (value,)
        elif kind != "switch":
            taken = following if kind == "many" else following[:1]
            index += len(taken)
        flags[name] = tuple(taken)
        if program == "sglang" and len(complaints) < MAX_COMPLAINTS:
            complaints += _complaints(written, name, kind, taken)
    return Launch(program, flags, env, tuple(complaints))


def _following(words: Sequence[str], start: int) -> tuple[str, ...]:
    """The words up to the next flag; a negative number is a value."""
    end = start
    while end < len(words) and not re.match(r"--?[A-Za-z]", words[end]):
        end += 1
    return tuple(words[start:end])


def _complaints(written: str, name: str, kind: str, taken: Sequence[str]) -> Iterator[Complaint]:
    text = taken[0] if taken else ""
    if not kind:
        if near := _near(name):
            yield Complaint(
                f"the engine has no flag {written}", f"--{near} is probably what is meant"
            )
    elif kind != "switch" and not taken:
        yield Complaint(f"{written} has no value", f"write a value after {written}, or drop it")
    elif not text or "<" in text:  # a variable that is not set yet
        return
    elif kind == "whole" and not _NUMBER.fullmatch(text):
        yield Complaint(f"{written} {text}: not a whole number", f"give {written} a whole number")
    elif kind == "decimal":
        try:
            float(text)
        except ValueError:
            yield Complaint(f"{written} {text}: not a number", f"give {written} a number")


@lru_cache(maxsize=256)
def _near(name: str) -> str:
    """A known flag that differs by a slip of the finger, "" where none does."""
    from difflib import SequenceMatcher

    if not 5 < len(name) < 80:
        return ""
    for known in _names("sglang"):
        if abs(len(known) - len(name)) <= 2 and known[:1] == name[:1]:
            matcher = SequenceMatcher(None, known, name, autojunk=False)
            # Two letters that differ, or two that changed places, in a name of usual length.
            if matcher.quick_ratio() > 0.9 and matcher.ratio() > 0.9:
                return known
    return ""


def _canonical(name: str, names: Mapping[str, str]) -> tuple[str, bool]:
    """The canonical spelling, and whether it was written to take the flag away."""
    from keel.args.knowledge.sglang_flags import ALIASES

    if name.startswith("no-") and name not in names:
        base = name[3:]
        if base in names:
            return base, True
    name = ALIASES.get(name, name)
    if name not in names:
        # argparse takes an unambiguous beginning for the whole.
        begun = [known for known in names if known.startswith(name)] if len(name) > 3 else []
        if len(begun) == 1:
            return begun[0], False
    return name, False


@lru_cache(maxsize=4)
def _names(program: str) -> Mapping[str, str]:
    """Canonical names of flags -> `switch`, `whole`, `decimal`, `text` or `many`."""
    from keel.args.knowledge import sglang_flags as sglang

    kinds = {
        **dict.fromkeys(sglang.SWITCHES, "switch"),
        **dict.fromkeys(sglang.WHOLE, "whole"),
        **dict.fromkeys(sglang.DECIMAL, "decimal"),
        **dict.fromkeys(sglang.TEXT, "text"),
        **dict.fromkeys(sglang.MANY, "many"),
    }
    if program == "keel":
        from keel.args import FLAGS

        for flag in FLAGS:
            name = sglang.ALIASES.get(flag.name[2:], flag.name[2:])
            kinds[name] = "switch" if flag.switch else "many" if flag.many else "text"
    return kinds
