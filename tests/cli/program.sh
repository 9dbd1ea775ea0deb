#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program's common behaviour: help, version, suggestions, exit codes, doctor, completion, bench's options.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"

# The command ends with the code, and what it says contains the words.
ends() { # name code words command ...
    ends_name=$1 ends_code=$2 ends_words=$3
    shift 3
    said=$("$@" 2>&1)
    code=$?
    if [ "$code" -ne "$ends_code" ]; then
        fail "$ends_name" "exit code $code, not $ends_code: $said"
        return
    fi
    case $said in
    *"$ends_words"*) pass "$ends_name" ;;
    *) fail "$ends_name" "wanted the words: $ends_words
it said: $said" ;;
    esac
}
is_json() { # name command ...
    is_json_name=$1
    shift
    if "$@" 2>&1 | python3 -m json.tool > /dev/null 2>&1; then
        pass "$is_json_name"
    else
        fail "$is_json_name" "$("$@" 2>&1 | head -c 400)"
    fi
}

ends version 0 "tessera 0." "$tessera" --version
ends help 0 "usage: tessera COMMAND" "$tessera" --help
ends help_long_option 0 "|per_document|ptrr
                       how cp cuts" "$tessera" verify model --help
ends no_command 2 "usage: tessera COMMAND" "$tessera"
ends unknown_command 2 'unknown command "docter"; did you mean doctor?' "$tessera" docter
ends far_command 2 'unknown command "xyzzy"; see tessera --help' "$tessera" xyzzy
ends unknown_option 2 'unknown option "--versoin"; did you mean --version?' "$tessera" --versoin

# Repair 35: what does not reach a full disk is a failure, whatever wrote it.
full() { "$tessera" "$@" > /dev/full; }
ends full_disk_help 1 "standard output: No space left" full --help
ends full_disk_list 1 "standard output: No space left" full op --list
ends full_disk_config 1 "standard output: No space left" full train --print-config
ends full_disk_text 1 "standard output: No space left" full layout --mesh a=2 --shape 4 --place R
ends full_disk_json 1 "standard output: " full layout --mesh a=2 --shape 4 --place R --json
ends full_disk_usage 2 "unknown command" full docter

ends doctor 0 "tessera runs here" "$tessera" doctor
ends doctor_nodes 0 "nodes        1" "$tessera" doctor
ends doctor_levels 0 "network      all ranks" env TESSERA_NODES=1 "$tessera" doctor
ends doctor_setting 0 "  TESSERA_LOG = error" env TESSERA_LOG=error "$tessera" doctor
ends doctor_misspelt 0 "TESSERA_RNAKS = 4    nothing reads it; did you mean TESSERA_RANKS?" \
    env TESSERA_RNAKS=4 "$tessera" doctor
# It knows every name that is documented, and no other.
known=$(grep -oE '"TESSERA_[A-Z_]+"' "$root/cli/doctor_settings.c" | tr -d '"' | sort)
documented=$(sed -n 's/^| `\(TESSERA_[A-Z_]*\)` |.*/\1/p' "$root/docs/environment.md" | sort)
if [ "$known" = "$documented" ]; then pass "doctor knows what is documented"
else fail "doctor knows what is documented" "$(printf '%s\n' $known $documented | sort | uniq -u)"; fi
ends doctor_help 0 "usage: tessera doctor" "$tessera" doctor --help
ends doctor_unknown_option 2 'unknown option "--jsno"; did you mean --json?' "$tessera" doctor --jsno
ends doctor_argument 2 'unexpected argument "now"' "$tessera" doctor now
ends doctor_flag_value 2 '--json takes no value' "$tessera" doctor --json=yes

ends bench_nothing 2 "usage: tessera bench WHAT" "$tessera" bench
ends bench_unknown 2 'there is no bench "com"; did you mean comm?' "$tessera" bench com
ends bench_ranks_zero 2 '--ranks: expected a whole number from 1 to 65536, found "0"' \
    "$tessera" bench comm --ranks 0
ends bench_ranks_word 2 'found "many"' "$tessera" bench comm --ranks=many
ends bench_ranks_missing 2 '--ranks needs a value' "$tessera" bench comm --ranks
ends bench_size 2 '--size: expected a number of bytes' "$tessera" bench comm --size 3furlongs
ends bench_engine 2 '--engine: expected threads or mpi, found "thread"; did you mean threads?' \
    "$tessera" bench comm --engine thread
ends bench_op 2 'there is no collective "all_gater"; did you mean all_gather?' \
    "$tessera" bench comm --op all_gater
ends bench_topology 2 "--topology: no preset '8xh10'; did you mean '8xh100'?" \
    "$tessera" bench redistribute --topology 8xh10
ends verify_topology 2 "--topology: 'none' is neither a preset nor a file" \
    "$tessera" verify model tests/golden/models/llama --topology none
ends environment_nodes 2 'TESSERA_NODES' env TESSERA_NODES=0 "$tessera" bench comm --op barrier
ends environment_ranks 2 'TESSERA_RANKS: expected a whole number from 1 to 65536, found "0"' \
    env TESSERA_RANKS=0 "$tessera" bench comm --op barrier
ends bench_runs 0 "all_reduce" "$tessera" bench comm --op all_reduce --size 64K --ranks 3 --seconds 1
ends bench_uneven 0 "ratio" "$tessera" bench comm --size 28 --ranks 4 --seconds 1
ends full_output 1 "" sh -c "'$tessera' doctor --json > /dev/full"

if command -v python3 > /dev/null 2>&1; then
    is_json doctor_json "$tessera" doctor --json
    is_json bench_json "$tessera" bench comm --op all_gather --size 4K --ranks 2 --seconds 1 --json
fi

# Completion offers what the program knows.
if command -v bash > /dev/null 2>&1; then
    complete_words() { # word ...
        PATH=$build/bin:$PATH bash -c '
            . "$0/cli/tessera.bash"
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
            _tessera
            echo "${COMPREPLY[*]}"' "$root" "$@"
    }
    ends complete_command 0 "doctor" complete_words tessera do
    ends complete_bench 0 "comm" complete_words tessera bench c
    ends complete_option 0 "--ranks" complete_words tessera bench comm --r
    ends complete_engine 0 "threads" complete_words tessera bench comm --engine t
fi

# The example, and what a launch says about bad options and failed ranks.
hello=$build/examples/01_hello
if [ -x "$hello" ]; then
    ends hello 0 "the sum   60" env TESSERA_RANKS=4 "$hello"
    ends hello_ranks_zero 2 'tessera: TESSERA_RANKS: expected a whole number' env TESSERA_RANKS=0 "$hello"
    ends hello_ranks_word 2 'found "lots"' env TESSERA_RANKS=lots "$hello"
    ends hello_option 2 '--ts-ranks: expected a whole number' "$hello" --ts-ranks=0
    ends hello_option_unknown 2 'unknown option "--ts-rank=2"' "$hello" --ts-rank=2
    ends hello_fails 1 'tessera: rank' "$hello" --ts-ranks=65
    # A mistake that all ranks make alike needs no account of what each was doing (repair 21).
    said=$("$hello" --ts-ranks=65 2>&1)
    case $said in
    *post-mortem*) fail hello_without_postmortem "$said" ;;
    *) pass hello_without_postmortem ;;
    esac
fi
finish
