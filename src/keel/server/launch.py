"""`keel serve`: the HTTP process, with the scheduler process as its child."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator

import uvicorn
import uvloop

from keel.args import ServerArgs, parse
from keel.errors import EngineDiedError
from keel.models.config import ModelConfig
from keel.models.registry import check_architecture
from keel.server.app import make_app
from keel.server.client import SchedulerClient
from keel.server.state import ServerState
from keel.sockets import listen
from keel.tokenizer.load import load_tokenizer
from keel.weights.checkpoint import open_checkpoint

log = logging.getLogger("keel.server")

# After the scheduler's death, answers in flight get that long to be told so.
_LAST_WORDS_SECONDS = 2.0
# Longer than clients and proxies keep an idle connection: whoever closes it second may just be
# sending a request on it. uvicorn's 5 s are exactly httpx's.
_KEEP_ALIVE_SECONDS = 75
_QUIET = ("/health", "/metrics")


def main(argv: list[str]) -> None:
    """Serve until a signal; returns after a drain, raises what kept it from serving.

    Raises:
        ArgumentError, ModelError, AddressInUseError, EngineDiedError
    """
    args = parse(argv)
    _set_up_logging(args.log_level)
    listener = listen(args.host, args.port)
    with contextlib.closing(listener):
        client = SchedulerClient(args)
        try:
            client.launch()  # loads the model while the tokenizer is read here
            state = load_state(args, client)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve(state, listener))
        finally:
            client.kill()


def load_state(args: ServerArgs, client: SchedulerClient) -> ServerState:
    """Everything that request handlers share."""
    checkpoint = open_checkpoint(args.model_path)
    check_architecture(checkpoint.config)
    tokenizer = load_tokenizer(args, checkpoint)
    config: ModelConfig = checkpoint.config
    return ServerState.make(args, client, tokenizer, config)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: it would die of the signal after a clean drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(state: ServerState, listener: socket.socket) -> None:
    """Run HTTP until a signal asks to end, or the scheduler dies.

    Raises:
        EngineDiedError: or what the scheduler said before it died.
    """
    client = state.client
    client.connect()
    config = uvicorn.Config(
        make_app(state),
        log_config=None,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, number, server, state)
    http = asyncio.create_task(server.serve(sockets=[listener]))
    ready = asyncio.create_task(_say_when_ready(state, listener))
    dead = asyncio.create_task(client.dead.wait())
    await asyncio.wait({http, dead}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    if dead.done() and not state.draining:
        server.should_exit = True
        await asyncio.wait({http}, timeout=_LAST_WORDS_SECONDS)
        server.force_exit = True
        http.cancel()
        raise client.death()
    if dead.done():
        server.force_exit = True
        raise EngineDiedError("the scheduler process ended while requests were drained")
    dead.cancel()
    await http
    await client.stop()
    log.info("drained; goodbye")


def _on_signal(number: int, server: uvicorn.Server, state: ServerState) -> None:
    name = signal.Signals(number).name
    if state.draining:
        log.warning("second %s: ending at once", name)
        state.client.kill()
        os._exit(128 + number)
    log.info("%s: finishing %d requests, taking no new ones", name, state.client.num_streams)
    state.draining = True
    server.should_exit = True


async def _say_when_ready(state: ServerState, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    log.info("listening on http://%s:%d; loading %s", host, port, state.args.model_path)
    while (ready := state.client.ready) is None:
        await asyncio.sleep(0.05)
    log.info(
        "ready after %.1f s: %s in %s on %s, requests to %d tokens, KV pool of %d tokens",
        ready.seconds,
        state.args.model_name,
        ready.dtype,
        ready.device,
        ready.max_request_tokens,
        ready.pool_tokens,
    )


def _set_up_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").addFilter(
        lambda record: not any(path in str(record.args) for path in _QUIET)
    )
