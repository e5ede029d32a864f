#!/usr/bin/env bash
# Put a `slipway` of this checkout on the PATH of the steps that follow.
#   SLIPWAY_PYTHON  a Python that has the release tool's dependencies; without it a virtual
#                   environment is made once per runner and state of pyproject.toml
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${RUNNER_TEMP:-/tmp}/slipway-bin-$$
source=${SLIPWAY_SOURCE:-$PWD/src}
python=${SLIPWAY_PYTHON:-}
if [ -z "$python" ]; then
    key=$(sha256sum pyproject.toml build/setup.sh | sha256sum | cut -c1-12)
    venv=${XDG_CACHE_HOME:-$HOME/.cache}/slipway/ci-$key
    [ -e "$venv/.release" ] || build/setup.sh release "$venv"
    python=$venv/bin/python
fi
mkdir -p "$bin"
printf '#!/bin/sh\nPYTHONPATH=%q exec %q -m slipway "$@"\n' "$source" "$python" >"$bin/slipway"
chmod +x "$bin/slipway"
echo "$bin" >>"$GITHUB_PATH"
