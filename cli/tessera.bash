# SPDX-License-Identifier: Apache-2.0
# Completion of `tessera` for bash. Commands and options come from the program itself, so they are those of
# the installed version.
_tessera() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local program=${COMP_WORDS[0]} words=() i word
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" --list-commands 2> /dev/null) --help --version" -- "$current")
        return
    fi
    case $previous in
    --engine)
        mapfile -t COMPREPLY < <(compgen -W "threads mpi model" -- "$current")
        return
        ;;
    --batch | --html | --svg | --config)
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
        ;;
    esac
    # The words of the command itself ("bench comm"), without options and their values.
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in -*) break ;; *) words+=("$word") ;; esac
    done
    case $current in
    -*) mapfile -t COMPREPLY < <(compgen -W "$("$program" "${words[@]}" --list-options 2> /dev/null)" -- "$current") ;;
    *)
        if [ "${#words[@]}" -eq 1 ] && [ "${words[0]}" = bench ]; then
            mapfile -t COMPREPLY < <(compgen -W "$("$program" bench --list-commands 2> /dev/null)" -- "$current")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
        fi
        ;;
    esac
}
complete -o filenames -F _tessera tessera
