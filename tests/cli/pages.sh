#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The pages of the program in a real browser: they draw without an error, answer the mouse, play, and follow the
# reader's choice of light and dark. Needs Chromium (Debian: chromium) and says so where it is missing.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
browser=""
for name in chromium chromium-browser google-chrome; do
    if [ -z "$browser" ] && command -v "$name" > /dev/null 2>&1; then browser=$name; fi
done
[ -n "$browser" ] || skip_all "skipped: no Chromium here; scripts/setup test installs it"

chrome() { # arguments ...
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run \
        --user-data-dir="$work/profile" --virtual-time-budget=3000 --enable-logging=stderr "$@"
}
chrome --dump-dom about:blank > "$work/blank" 2>&1 || skip_all "skipped: $browser does not start here"

# The page, after its script has run, contains all the words and said nothing on the console.
shows() { # name file words ...
    shows_name=$1 shows_file=$2
    shift 2
    if ! chrome --dump-dom "file://$work/$shows_file" > "$work/dom" 2> "$work/console"; then
        fail "$shows_name" "the browser failed: $(tail -n 3 "$work/console")"
        return
    fi
    if grep -E 'CONSOLE.*(rror|ncaught)' "$work/console" > "$work/errors"; then
        fail "$shows_name" "$(cat "$work/errors")"
        return
    fi
    for words; do
        grep -qF -- "$words" "$work/dom" && continue
        fail "$shows_name" "wanted the words: $words
$(grep -o '<body[^>]*>' "$work/dom")"
        return
    done
    pass "$shows_name"
}
# A copy of the page with a script of ours at its end.
with_script() { # file copy script
    sed "s|</body>|<script>$3</script></body>|" "$work/$1" > "$work/$2"
}

# ---- the report of a run, on a wide page and on a narrow one --------------------------------------------
for i in 1 2 3 4 5 6 7 8 9; do echo "The fox number $i ran home."; done > "$work/text.txt"
printf '[model]\nhidden = 16\nlayers = 2\nheads = 2\n[data]\npath = %s\ncontext = 8\n' "$work/text.txt" > "$work/a.ini"
"$tessera" train "$work/a.ini" --set train.output="$work/run" --set train.steps=4 --set train.batch=4 \
    --set "parallel.mesh=pp=2, fsdp=2" --set log.sample=3 > "$work/said" 2>&1 || fail "a run" "$(cat "$work/said")"
cp "$work/run/report.html" "$work/report.html"
wide='const d = document.documentElement; d.dataset.fits = d.scrollWidth <= d.clientWidth;'
with_script report.html fits.html "$wide"
for width in 1400 700 360; do
    printf '<iframe src="fits.html" width="%s" height="900" onload="document.body.dataset.fits = %s"></iframe>' \
        "$width" "contentDocument.documentElement.dataset.fits" > "$work/frame.html"
    if chrome --allow-file-access-from-files --window-size=1600,1000 --dump-dom "file://$work/frame.html" 2> /dev/null |
        grep -q 'data-fits="true"'; then
        pass "the report fits a page of $width"
    else
        fail "the report fits a page of $width" "it is wider"
    fi
done

# ---- layouts ---------------------------------------------------------------------------------------------
"$tessera" layout --mesh "a=2, b=3" --shape 7x5 --place "S(0), SS(1,2)" --html "$work/layout.html"
shows "a layout is drawn" layout.html 'data-drawn="10"'
move='const c = document.getElementById("canvas"), r = c.getBoundingClientRect();
const x = r.left + 44 + 3 * 34 + 5, y = r.top + 22 + 5 * 34 + 5;
c.dispatchEvent(new MouseEvent("mousemove", { clientX: x, clientY: y }));'
with_script layout.html hover.html "$(printf '%s' "$move" | tr '\n' ' ')"
shows "the mouse over an element: rank, coordinate, both indices" hover.html \
    '<b>rank 3</b>' '(a=1, b=0)' 'global (5, 3)  #28' 'local  (1, 1)  #3'
"$tessera" layout --mesh "dp=4, tp=8" --shape 4x1024x512 --place "S(1), S(2)" --html "$work/large.html"
shows "a large layout is drawn by pieces, with a slider" large.html 'data-drawn="32"' 'type="range"'
"$tessera" layout --mesh "a=2" --shape 0x3 --place "S(0)" --html "$work/empty.html"
shows "an empty tensor" empty.html 'data-drawn="0"'
"$tessera" layout --mesh "a=2" --shape scalar --place "R" --html "$work/scalar.html"
shows "a scalar" scalar.html 'ranks 0, 1'

# ---- plans -----------------------------------------------------------------------------------------------
"$tessera" plan --mesh "a=2, b=4" --shape 1024x128 --from "S(0), S(1)" --to "S(1), S(0)" --planner direct \
    --html "$work/direct.html"
shows "a direct exchange: one frame, every message" direct.html 'data-drawn="1 frames, 12 flights"'
with_script direct.html half.html \
    'const s = document.getElementById("slider"); s.value = 50; s.dispatchEvent(new Event("input"));'
shows "the slider shows the step" half.html 'Step 1 of 1: exchange'
press='document.getElementById("play").click(); const s = document.getElementById("slider"); let frames = 0;
const draw = () => { frames++; requestAnimationFrame(draw); }; requestAnimationFrame(draw);
setInterval(() => console.log("frames", frames, "played to", s.value), 50);'
with_script direct.html plays.html "$(printf '%s' "$press" | tr '\n' ' ')"
plays() { # frames are drawn only where there is a picture to take, and few on a busy machine
    local try
    for try in 1 2 3; do
        chrome --window-size=1000,700 --screenshot="$work/plays.png" "file://$work/plays.html" \
            > /dev/null 2> "$work/console$try"
        grep -q 'played to [1-9]' "$work/console$try" && return
    done
    ! grep -qE 'frames [1-9][0-9]+ ' "$work"/console[123] && echo "no frames were drawn: nothing to see"
}
succeeds "the button plays it" plays
"$tessera" plan --mesh "a=2, b=4" --shape 1024x128 --from "S(0), S(1)" --to "S(1), S(0)" --planner greedy \
    --topology reference-cpu --html "$work/greedy.html"
shows "collectives: a frame per step" greedy.html 'data-drawn="3 frames'
"$tessera" plan --mesh "a=2, b=4" --shape 1024x128 --from "S(1), P(sum)" --to "R, S(1)" --planner direct \
    --html "$work/terms.html"
shows "terms: two rounds" terms.html 'data-drawn="2 frames'
"$tessera" plan --mesh "a=3" --to-mesh "x=2, y=2" --shape 7x5 --from "S(0)" --to "S(1), SS(0,2)" \
    --html "$work/meshes.html"
shows "two meshes" meshes.html 'data-drawn="1 frames'
"$tessera" plan --mesh "a=2" --shape 4 --from "S(0)" --to "S(0)" --html "$work/none.html"
shows "nothing moves" none.html 'data-drawn="0 frames'
"$tessera" plan --mesh "a=2" --shape 4x0 --from "S(0)" --to "R" --html "$work/void.html"
shows "an empty tensor's plan" void.html 'There is no picture'

# ---- light and dark --------------------------------------------------------------------------------------
looks() { # page
    chrome --window-size=1000,700 --screenshot="$work/light.png" "file://$work/$1" > /dev/null 2>&1
    chrome --window-size=1000,700 --force-dark-mode --screenshot="$work/dark.png" "file://$work/$1" \
        > /dev/null 2>&1
    [ -s "$work/light.png" ] && [ -s "$work/dark.png" ] && ! cmp -s "$work/light.png" "$work/dark.png"
}
succeeds "a layout in light and dark" looks layout.html
succeeds "a plan in light and dark" looks greedy.html
finish
