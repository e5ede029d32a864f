"""`keel router`: one process, or a supervisor and several that share the port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal

import uvloop

from keel.args.router import RouterArgs, parse
from keel.router.discovery.sources import Discovery
from keel.router.fleet import Change, Fleet, apply_change
from keel.router.load import LoadBoard
from keel.router.metrics import Snapshot
from keel.router.router import Router
from keel.router.serving import serving
from keel.router.supervisor import Supervisor
from keel.router.tokenisation import Tokenisation, load_renderer
from keel.router.worker import WorkerSpec, specs_of
from keel.sockets import listen

log = logging.getLogger("keel.router")


def main(argv: list[str]) -> None:
    """Route until a signal; returns after the requests in hand have ended.

    Raises:
        ArgumentError, AddressInUseError, ModelError
    """
    args = parse(argv)
    set_up_logging(args.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if args.workers == 1:
            runner.run(_alone(args))
        else:
            runner.run(Supervisor(args, argv, static_specs(args)).run())


def set_up_logging(level: str) -> None:
    """To stderr, as the access log."""
    name = "warning" if level == "warn" else level
    logging.basicConfig(
        level=name.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def static_specs(args: RouterArgs) -> list[WorkerSpec]:
    """The workers of the command line."""
    return specs_of(
        args.worker_urls,
        args.prefill_workers,
        [url for group in args.decode for url in group],
        args.length_buckets,
        [url for group in args.http2_workers for url in group],
    )


def make_router(args: RouterArgs, board: LoadBoard) -> Router:
    """A router process's heart, with what takes long to load.

    Raises:
        ModelError, ArgumentError: there is no tokenizer to be had.
    """
    router = Router(args, board)
    if args.tokenizer_path is not None:
        router.tokenisation = Tokenisation(
            load_renderer(args.tokenizer_path, args.chat_template),
            {model for group in args.no_input_ids_for for model in group},
            router.metrics.rendered,
        )
    return router


class LocalControl:
    """A `Control` where there is one process."""

    def __init__(self, router: Router, fleet: Fleet) -> None:
        self._router, self._fleet = router, fleet

    async def add(self, spec: WorkerSpec) -> None:
        """As `Control.add`."""
        self._fleet.add(spec)

    async def drain(self, url: str) -> bool:
        """As `Control.drain`."""
        return self._fleet.drain(url)

    async def remove(self, url: str) -> bool:
        """As `Control.remove`."""
        return self._fleet.remove(url)

    async def snapshot(self) -> Snapshot:
        """As `Control.snapshot`."""
        return self._router.snapshot()


async def _alone(args: RouterArgs) -> None:
    listener = listen(args.host, args.port)
    board = LoadBoard()
    router = make_router(args, board)

    def tell(change: Change) -> None:
        apply_change(router.table, change)

    fleet = Fleet(board, tell, args.drain_timeout_secs)
    for spec in static_specs(args):
        fleet.add(spec, "flags")
    discovery = Discovery(args, fleet)
    async with serving(router, LocalControl(router, fleet), listener), discovery.running():
        await signalled(discovery.look_again)


async def signalled(reload: asyncio.Event) -> None:
    """Wait for a signal to end; a second one ends the process at once. SIGHUP sets `reload`."""
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    await ending.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError):
            loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
