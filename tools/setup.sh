#!/bin/sh
# Makes .venv ready: finds Python 3.11 or newer with venv, installs what requirements/ pins, and alphorn itself in place.
# Run by make; does nothing that a second run would not repair. Ends with one sentence when something is missing.
set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "set-up stopped: $1" >&2
    exit 1
}

# Installs Debian packages where this user may; elsewhere the caller's own check says what is missing.
try_apt() {
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "set-up: installing $* with apt-get" >&2
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@"; } >/dev/null || true
    fi
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

has_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# The system's own comes first: distributions build it with profile-guided optimisation, and others often do without.
find_python() {
    for name in ${PYTHON:-/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11}; do
        if is_new_enough "$name"; then
            has_venv "$name" || try_apt "$("$name" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')"
            if has_venv "$name"; then
                command -v "$name"
                return
            fi
        fi
    done
}

python=$(find_python)
if [ -z "$python" ] && [ -z "${PYTHON:-}" ]; then
    try_apt python3 python3-venv
    python=$(find_python)
fi
[ -n "$python" ] || fail "no Python 3.11 or newer with its module venv was found; install python3 and python3-venv, or name one with PYTHON=/path/to/python"

# Spark runs on Java; everything else works without, so its absence stops nobody here.
has_java() {
    command -v java >/dev/null 2>&1 && java -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])'
}
has_java || try_apt openjdk-17-jre-headless
has_java || echo "set-up: no Java 17 or newer was found; install openjdk-17-jre-headless for everything about Spark" >&2

# Scripts in an environment name its path, so one that was copied, or whose Python is gone, is made anew.
if [ -e .venv ]; then
    if ! .venv/bin/python -c '' 2>/dev/null || ! head -n 1 .venv/bin/pip 2>/dev/null | grep -qF "$(pwd -P)/.venv/bin/"; then
        echo "set-up: .venv was not made here; making it anew"
        rm -rf .venv
    fi
fi
[ -e .venv ] || { echo "set-up: making .venv with $python, $("$python" --version)"; "$python" -m venv .venv; }

echo "set-up: installing what requirements/ pins"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt ||
    fail "pip could not install requirements/dev.txt; check that the package registry can be reached, then run make again"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e . ||
    fail "pip could not install alphorn in place; read the lines above, then run make again"
pwd -P > .venv/.ready
