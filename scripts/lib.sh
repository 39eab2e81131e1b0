# Shared by the scripts beside it: source it first. Leaves the shell at the root of the repository.
# shellcheck shell=bash
set -euo pipefail
# Ctrl-C ends the script also where the command that runs, such as dpkg, does not let itself be stopped.
trap 'exit 130' INT

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$ROOT"

# Everything fetched lands here (ignored by git); `rm -rf .tools` undoes scripts/setup.
TOOLS=$ROOT/.tools
TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}
WASM_TARGET=wasm32-unknown-unknown
# shellcheck disable=SC2034 # the scripts use it
ENVOY_VERSION=1.40.0
# shellcheck disable=SC2034
NODE_VERSION=24.19.0
# Debian 12's Node.js 18 crashes on the references that wasm-bindgen hands out.
NODE_OLDEST=20

# What the test programs and the demo look for. Each can be set from outside.
export ENVOY=${ENVOY:-$TOOLS/envoy/envoy}
export SELECTIVE_KV_WASM=${SELECTIVE_KV_WASM:-$ROOT/dist/selective_kv.wasm}
export SELECTIVE_KV_POLICY_WASM=${SELECTIVE_KV_POLICY_WASM:-$ROOT/dist/selective_kv_policy.wasm}
export FOREIGN_SCORER_WASM=${FOREIGN_SCORER_WASM:-$ROOT/dist/foreign_scorer.wasm}
export BENCH_BASELINES_WASM=${BENCH_BASELINES_WASM:-$ROOT/dist/bench_baselines.wasm}
export STAND_IN_ENGINE=${STAND_IN_ENGINE:-$TARGET_DIR/debug/stand-in-engine}
export KV_EVENTS_BRIDGE=${KV_EVENTS_BRIDGE:-$TARGET_DIR/debug/kv-events-bridge}
export KV_PREFETCH_AGENT=${KV_PREFETCH_AGENT:-$TARGET_DIR/debug/kv-prefetch-agent}

# rustup puts cargo here; a shell that was open before the installation does not know it yet.
if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
    PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
fi

# True if there is a Node.js that is new enough.
node_fits() {
    local version
    version=$(node --version 2>/dev/null) || return 1
    version=${version#v}
    [ "${version%%.*}" -ge "$NODE_OLDEST" ]
}
# Takes the one that scripts/setup fetched where the machine's own does not fit. True if one fits.
find_node() {
    node_fits && return
    [ -x "$TOOLS/node/node" ] || return
    PATH=$TOOLS/node:$PATH
    node_fits
}

# shellcheck disable=SC2034 # scripts/setup uses it
# Leaves in NPM how to call npm: the machine's own, or the one that came with scripts/setup's Node.js.
find_npm() {
    local own=$TOOLS/node/npm/bin/npm-cli.js
    if [ -f "$own" ] && [ "$(command -v node)" = "$TOOLS/node/node" ]; then
        NPM=(node "$own")
    else
        NPM=(npm)
        have npm
    fi
}
# shellcheck disable=SC2034
WASM_OPT=$TOOLS/wasm-opt/node_modules/.bin/wasm-opt

step() { printf '\n==> %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }
die() {
    printf '\nerror: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 1
}
have() { command -v "$1" >/dev/null; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        die "this needs root: $*" "run it as root, or install sudo"
    fi
}

installed() { dpkg-query -W -f '${Status}\n' "$@" 2>/dev/null | grep -c ' installed$' | grep -qx $#; }

APT_LISTS_FRESH=
# apt_install WHY PACKAGE…: Debian's packages, only those that are missing.
apt_install() {
    local why=$1 package missing=()
    shift
    for package in "$@"; do
        installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    have apt-get || die "$why is missing, and this machine has no apt-get" "install what Debian calls: ${missing[*]}"
    note "$why: installing Debian's ${missing[*]} (under a minute on a good line)"
    if [ -z "$APT_LISTS_FRESH" ]; then
        as_root apt-get update -qq || note "apt-get update failed; trying with the lists that are here"
        APT_LISTS_FRESH=yes
    fi
    as_root env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null ||
        die "$why: apt-get could not install ${missing[*]}"
}

# Debian's second Rust: with these it builds for wasm, the standard library from source.
DEBIAN_WASM=(rustc-web cargo-web rust-web-src rust-web-llvm lld-22)

# Where the wasm target comes from: "rustup" (the active toolchain has it), "debian", or "none".
# WASM_SOURCE=debian tries that way on a machine that has both.
wasm_source() {
    if [ "${WASM_SOURCE:-rustup}" = rustup ] &&
        compgen -G "$(rustc --print sysroot)/lib/rustlib/$WASM_TARGET/lib/libcore-*.rlib" >/dev/null; then
        echo rustup
    elif installed "${DEBIAN_WASM[@]}"; then
        echo debian
    else
        echo none
    fi
}

# wasm_cargo STD COMMAND ARGUMENT…: cargo for the wasm target. STD are the parts of the standard
# library that Debian's toolchain has to build for it.
wasm_cargo() {
    local std=$1 command=$2
    shift 2
    # No path of the machine that builds goes into the module.
    local remap="target.$WASM_TARGET.rustflags=['--remap-path-prefix=$ROOT=.','--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo']"
    case $(wasm_source) in
    rustup) cargo --config "$remap" "$command" --target "$WASM_TARGET" "$@" ;;
    debian) RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc cargo --config "$remap" "$command" --target "$WASM_TARGET" -Zbuild-std="$std" "$@" ;;
    none) die "Rust's $WASM_TARGET target is missing" "run scripts/setup" ;;
    esac
}

# The version of a package in Cargo.lock.
locked_version() {
    awk -v want="name = \"$1\"" '$0 == want { getline; gsub(/version = |"/, ""); print; exit }' Cargo.lock
}
