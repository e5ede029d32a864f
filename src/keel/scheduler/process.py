"""The scheduler's own process: receive, step, send.

Started by `server.client` as `python -m keel.scheduler.process`, so that Python work on text and
HTTP never delays a forward pass. It ends when its parent does.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import time

import msgspec
import zmq

from keel.args import ServerArgs
from keel.errors import EngineDiedError, KeelError
from keel.messages import (
    Abort,
    Answer,
    End,
    Failed,
    FlushCache,
    Generate,
    GetStats,
    Ready,
    Shutdown,
    StepDone,
    Tokens,
    ToScheduler,
)
from keel.scheduler.build import Built, build_scheduler
from keel.weights.checkpoint import open_checkpoint

log = logging.getLogger("keel.scheduler")

# How long an idle scheduler sleeps before it looks whether its parent is still there.
_IDLE_MS = 2000
_PR_SET_PDEATHSIG = 1


class Mailbox:
    """The two sockets to the HTTP process."""

    def __init__(self, inbound: str, outbound: str) -> None:
        self._context = zmq.Context()
        self._in = self._context.socket(zmq.PULL)
        self._out = self._context.socket(zmq.PUSH)
        for socket, address in ((self._in, inbound), (self._out, outbound)):
            socket.set_hwm(0)  # never drop, never block: senders are bounded by their requests
            socket.connect(address)
        self._decoder = msgspec.msgpack.Decoder(ToScheduler)
        self._encoder = msgspec.msgpack.Encoder()

    def receive(self, wait_ms: int) -> list[ToScheduler]:
        """All messages that are there; waits for the first one up to `wait_ms`."""
        if wait_ms and not self._in.poll(wait_ms):
            return []
        found = []
        while True:
            try:
                found.append(self._decoder.decode(self._in.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return found

    def send(self, message: Ready | Failed | StepDone | Answer) -> None:
        """Send one message."""
        self._out.send(self._encoder.encode(message))

    def close(self) -> None:
        """Send what is left and close."""
        self._context.destroy(linger=1000)


def serve(built: Built, mailbox: Mailbox, parent: int) -> None:
    """The loop; returns on `Shutdown`, or when the parent is gone."""
    scheduler = built.scheduler
    checked = True
    while True:
        done: list[Tokens] = []
        for message in mailbox.receive(_IDLE_MS if scheduler.is_idle else 0):
            match message:
                case Generate():
                    refusal = scheduler.submit(message)
                    done += [refusal] if refusal else []
                case Abort():
                    done += scheduler.abort(message.prefix)
                case End():
                    done += scheduler.end(message.rid)
                case FlushCache():
                    ok = scheduler.flush()
                    mailbox.send(Answer(message.ticket, ok, scheduler.stats()))
                case GetStats():
                    mailbox.send(Answer(message.ticket, True, scheduler.stats()))
                case Shutdown():
                    return
        if not scheduler.is_idle:
            done += scheduler.step()
            checked = False
        elif not checked:
            scheduler.check_integrity()
            checked = True
        if done:
            mailbox.send(StepDone(done, scheduler.stats()))
        if os.getppid() != parent:
            return


def main() -> None:
    """Read the arguments from stdin, load, report, serve."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # ^C goes to the whole terminal; the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = json.load(sys.stdin)
    args = ServerArgs(**spec["args"])
    logging.basicConfig(
        level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    mailbox = Mailbox(spec["inbound"], spec["outbound"])
    try:
        built = build_scheduler(args, open_checkpoint(args.model_path))
        where, limits = built.runner.where, built.limits
        mailbox.send(
            Ready(
                pid=os.getpid(),
                device=str(where.device),
                dtype=str(where.dtype).removeprefix("torch."),
                max_request_tokens=limits.max_request_tokens,
                max_running_requests=limits.max_running,
                chunked_prefill_size=limits.prefill_tokens if limits.chunked else -1,
                pool_tokens=built.runner.pool_tokens,
                seconds=time.monotonic() - spec["launched"],
            )
        )
        serve(built, mailbox, spec["parent"])
    except KeelError as error:
        mailbox.send(Failed(error.what, error.remedy, error.exit_code))
        sys.exit(error.exit_code)
    except Exception as error:
        log.exception("the scheduler failed")
        mailbox.send(
            Failed(
                f"the scheduler failed: {type(error).__name__}: {error}",
                "see the log above; please report it",
                EngineDiedError.exit_code,
            )
        )
        sys.exit(EngineDiedError.exit_code)
    finally:
        mailbox.close()


if __name__ == "__main__":
    main()
