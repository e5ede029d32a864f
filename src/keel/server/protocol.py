"""Request bodies of the HTTP API, as pydantic models: types, limits, documentation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

MAX_CHOICES = 128
_SEED_MAX = 2**63 - 1

Rid = Annotated[str, StringConstraints(min_length=1, max_length=256)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Stop = StopString | Annotated[list[StopString], Field(max_length=16)] | None


def _only(value: float) -> AfterValidator:
    def check(given: float) -> float:
        if given != value:
            raise ValueError(f"{given} is not served; only {value}")
        return given

    return AfterValidator(check)


def _refused(value: Any) -> Any:
    if value is not None:
        raise ValueError("this engine does not do prefill and decode apart; give it to another one")
    return value


# What a router gives to a pair of engines.
Bootstrap = Annotated[Any, AfterValidator(_refused)]
Zero = Annotated[float, _only(0.0)]
One = Annotated[float, _only(1.0)]


class _Body(BaseModel):
    # Strict: "5" is no number. Unknown fields are refused, as OpenAI does: a field that is read and
    # ignored is a wrong answer.
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(_Body):
    """Of a streamed answer."""

    include_usage: bool = False
    continuous_usage_stats: Literal[False] = False


class _Sampling(_Body):
    """Fields that completions and chat completions share."""

    model: str = "default"
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: Stop = None
    seed: int | None = Field(None, ge=-_SEED_MAX, le=_SEED_MAX)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    user: str | None = None
    metadata: dict[str, str] | None = None
    # SGLang's additions.
    rid: Rid | None = None
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    min_tokens: int | None = Field(None, ge=0)
    stop_token_ids: list[TokenId] | None = Field(None, max_length=128)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    bootstrap_host: Bootstrap = None
    bootstrap_port: Bootstrap = None
    bootstrap_room: Bootstrap = None
    # Of OpenAI, with the one meaning that is served.
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None


class CompletionRequest(_Sampling):
    """Body of `/v1/completions`."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    max_tokens: int | None = Field(16, ge=1)
    echo: bool = False
    best_of: Literal[1] | None = None
    suffix: None = None
    logprobs: None = None


class TextPart(_Body):
    """A part of a message; this engine's models read text."""

    type: Literal["text"]
    text: str
    cache_control: dict[str, str] | None = None  # Anthropic's; every prefix is cached anyway


class Message(BaseModel):
    """A turn of a conversation; further fields reach the chat template."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: str = Field(min_length=1)
    content: str | list[TextPart] | None = None


class ResponseFormat(_Body):
    """Only free text."""

    type: Literal["text"]


class ChatCompletionRequest(_Sampling):
    """Body of `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    # What a router made of the messages already; they are not rendered again then.
    input_ids: list[TokenId] | None = Field(None, min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: Literal[False] = False
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None


class NativeSampling(_Body):
    """`sampling_params` of `/generate`."""

    max_new_tokens: int | None = Field(128, ge=1)
    min_new_tokens: int = Field(0, ge=0)
    stop: Stop = None
    stop_token_ids: list[TokenId] | None = Field(None, max_length=128)
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    sampling_seed: int | None = Field(None, ge=-_SEED_MAX, le=_SEED_MAX)
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    frequency_penalty: Zero = 0.0
    presence_penalty: Zero = 0.0
    repetition_penalty: One = 1.0


class GenerateRequest(_Body):
    """Body of `/generate`, SGLang's own API."""

    text: str | list[str] | None = None
    input_ids: list[TokenId] | list[list[TokenId]] | None = None
    sampling_params: NativeSampling = Field(
        default_factory=lambda: NativeSampling.model_validate({})
    )
    rid: Rid | list[Rid] | None = None
    bootstrap_host: Bootstrap = None
    bootstrap_port: Bootstrap = None
    bootstrap_room: Bootstrap = None
    stream: bool = False
    return_logprob: Literal[False] = False


class AbortRequest(_Body):
    """Body of `/abort_request`: the beginning of ids, or all."""

    rid: str = ""
    abort_all: bool = False


class TokenizeRequest(_Body):
    """Body of `/tokenize`."""

    model: str = "default"
    prompt: str | Annotated[list[str], Field(max_length=1024)]
    add_special_tokens: bool = True


class DetokenizeRequest(_Body):
    """Body of `/detokenize`."""

    model: str = "default"
    tokens: list[TokenId] | list[list[TokenId]]
    skip_special_tokens: bool = True


class Turn(_Body):
    """A turn of a conversation in Anthropic's API."""

    role: Literal["user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]


class CountTokensRequest(_Body):
    """Body of Anthropic's `/v1/messages/count_tokens`."""

    model: str
    messages: list[Turn] = Field(min_length=1)
    system: str | list[TextPart] | None = None


class MessagesRequest(CountTokensRequest):
    """Body of Anthropic's `/v1/messages`."""

    max_tokens: int = Field(ge=1)
    stop_sequences: list[StopString] | None = Field(None, max_length=16)
    stream: bool = False
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)
    metadata: dict[str, str] | None = None
