#!/bin/sh
# Cargo runs this in place of rustc for the packages of this workspace, when the tests are built. It notes how the program quorate
# is compiled, so that `static_build/lab_program.rs` can link it a second time, and compiles as asked: where QUORATE_LINT is set,
# by clippy, which is rustc with more lints.
case " $* " in
*" --crate-name quorate "*" --crate-type bin "*)
    env -0 >"$QUORATE_COMPILATION.env" && printf '%s\0' "$@" >"$QUORATE_COMPILATION" || exit 1
    ;;
esac
if [ -n "$QUORATE_LINT" ]; then
    case $1 in
    */*) exec "${1%/*}/clippy-driver" "$@" ;;
    *) exec clippy-driver "$@" ;;
    esac
fi
exec "$@"
