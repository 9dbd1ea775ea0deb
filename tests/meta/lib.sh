# SPDX-License-Identifier: Apache-2.0
# What the shell tests share; sourced, never run. Each test says what it checks with one of these and ends with
# `finish`, which prints "N passed, N failed". A check that can only pass is none: `refuses` runs a checker on a
# tree made to break its rule.
LC_ALL=C
export LC_ALL
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-${BUILD:-$root/build/release}}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

pass() {
    passed=$((passed + 1))
    echo "ok   $1"
}
fail() { # name [explanation]
    failed=$((failed + 1))
    echo "FAIL $1"
    [ -z "${2:-}" ] || printf '%s\n' "$2" | sed 's/^/     /'
}
# The command succeeds.
succeeds() { # name command ...
    succeeds_name=$1
    shift
    if said=$("$@" 2>&1); then pass "$succeeds_name"; else fail "$succeeds_name" "$said"; fi
}
# The command fails, and what it says contains the words.
refuses() { # name words command ...
    refuses_name=$1
    refuses_words=$2
    shift 2
    if said=$("$@" 2>&1); then
        fail "$refuses_name" "it was accepted"
    else
        case $said in
        *"$refuses_words"*) pass "$refuses_name" ;;
        *) fail "$refuses_name" "wanted the words: $refuses_words
it said: $said" ;;
        esac
    fi
}
# The file of findings is empty.
nothing_in() { # name file
    if [ -s "$2" ]; then fail "$1" "$(cat "$2")"; else pass "$1"; fi
}
skip_all() { # reason
    echo "$1"
    exit 77
}
# Is an engine or a library there in this build: mpi:openmpi, pcre2? An MPI needs its launcher, too.
has() { # name of a line of `tessera doctor`
    "$build/bin/tessera" doctor 2> /dev/null | grep -q "^  $1  *yes" || return 1
    case $1 in
    mpi:*) command -v "mpirun.${1#mpi:}" > /dev/null 2>&1 ;;
    esac
}
finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}

# A command ends with a code and says some words, on either stream.
says() { # name code words command ...
    says_name=$1 says_code=$2 says_words=$3
    shift 3
    said=$("$@" 2>&1)
    code=$?
    case $code:$said in
    $says_code:*"$says_words"*) pass "$says_name" ;;
    *) fail "$says_name" "exit code $code (wanted $says_code), wanted the words: $says_words
it said: $said" ;;
    esac
}
