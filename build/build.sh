#!/usr/bin/env bash
# Build the engine's image and pack its archive: build/build.sh [tag]
#   default tag: <branch>-<sha9>-local-<UTC>; the alias <branch>-latest-local moves with it
#   FULL=1       resolve and unpack the dependencies anew, whatever the dependency key says
#   VARIANT=cpu  a row of docker/matrix.toml
# Whether the fast path will do is `slipway image plan`'s to say; its state lies with the images.
set -euo pipefail
cd "$(dirname "$0")/.."
slipway=$(command -v slipway || true)
[ -x .venv/bin/slipway ] && slipway=$PWD/.venv/bin/slipway
[ -n "$slipway" ] || { echo "error: slipway is not installed"; echo "fix:   make image"; exit 12; } >&2

"$slipway" image build ${1:+"$1"} --variant "${VARIANT:-cpu}"
"$slipway" deploy pack local-cpu-single
echo "start:   make up"
