"""All kernels beside their limits: `PYTHONPATH=src:bench python -m kernels [--peer FOLDER]`.

Needs one GPU. The tables are printed last.
"""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

import torch

from kernels.measure import copy_limit, host_copy_limit

PARTS = ("sparse_decode", "hisparse", "paged", "indexer", "elementwise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, help="folder with SGLang's files")
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--sweep", action="store_true", help="time every cut of the sparse decode")
    parser.add_argument("--warm", help="i/n: only compile share i of n of the sweep")
    args = parser.parse_args()
    if args.warm:
        from kernels import sparse_decode

        share, of = map(int, args.warm.split("/"))
        sparse_decode.sweep(share, of)
        return
    began = time.monotonic()
    memory, link = copy_limit(), host_copy_limit()
    texts = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: device copy "
        f"{memory / 1e12:.2f} TB/s both ways, pinned host to device {link / 1e9:.1f} GB/s"
    ]
    for name in args.only:
        module = importlib.import_module(f"kernels.{name}")
        if name == "sparse_decode":
            tables = module.run(memory, args.peer)
            if args.sweep:
                tables += module.sweep(quick=True)
        elif name == "hisparse":
            tables = module.run(module.gather_limit(1 << 17))
        else:
            tables = module.run(memory)
        texts += [t.text() for t in tables]
        print(f"{name} after {time.monotonic() - began:.0f} s", flush=True)
    print("\n\n".join(texts))


if __name__ == "__main__":
    main()
