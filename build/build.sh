#!/usr/bin/env bash
# Build the engine's image and pack its archive: build/build.sh [tag]
#   default tag: <branch>-<sha9>-local-<UTC>; the alias <branch>-latest-local moves with it
#   FULL=1       resolve and unpack the dependencies anew, whatever the dependency key says
#   VARIANT=cpu  a row of docker/matrix.toml
# Whether the fast path will do is `slipway image plan`'s to say; its state lies with the images.
set -euo pipefail
cd "$(dirname "$0")/.."
slipway=$PWD/.venv/bin/slipway
[ -x "$slipway" ] || slipway=$(command -v slipway) || {
    printf 'error: slipway is not installed\nfix:   make image\n' >&2
    exit 12
}

"$slipway" image build ${1:+"$1"} --variant "${VARIANT:-cpu}"
"$slipway" deploy pack local-cpu-single --quiet
echo "start:   make up"
