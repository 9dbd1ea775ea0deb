#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the build under a DESTDIR, moves the tree elsewhere, and builds outside programs against it: in C and
# C++, through pkg-config and CMake, shared and static. Nothing may refer to the source or build directory.
. "$(dirname "$0")/../meta/lib.sh"
here=$root/tests/install
succeeds "cmake --install" env DESTDIR="$work/dest" cmake --install "$build" --prefix /opt/tessera
mv "$work/dest/opt/tessera" "$work/moved" 2> /dev/null
prefix=$work/moved
lib=$(dirname "$(find "$prefix" -name 'libtessera.so' | head -n 1)")

for file in "$prefix/include/tessera/tessera.h" "$lib/libtessera.so" "$lib/libtessera.a" "$lib/pkgconfig/tessera.pc" \
    "$lib/cmake/tessera/tesseraConfig.cmake" "$prefix/bin/tessera" \
    "$prefix/share/bash-completion/completions/tessera"; do
    succeeds "installed: ${file#"$prefix"/}" test -s "$file"
done
for module in "$build"/lib/tessera/*.so; do
    [ -e "$module" ] || continue
    succeeds "installed: module $(basename "$module")" test -s "$lib/tessera/$(basename "$module")"
done
grep -rlI -e "$root" -e "$build" "$prefix" > "$work/leaks" 2> /dev/null
nothing_in "no text names the source tree" "$work/leaks"
for file in "$prefix/bin/tessera" "$lib/libtessera.so" "$lib"/tessera/*.so; do
    [ -e "$file" ] || continue
    if readelf -d "$file" | grep -E 'R(UN)?PATH' | grep -qF "$root"; then
        fail "rpath of $(basename "$file")"
    else
        pass "rpath of $(basename "$file")"
    fi
done
succeeds "the installed program runs" "$prefix/bin/tessera" --version
succeeds "and its doctor" "$prefix/bin/tessera" doctor

# An outside program was built: it must run and print the sum.
prints_sum() { # name program
    said=$(env LD_LIBRARY_PATH="$lib" "$2" 2>&1)
    if [ "$said" = "TS_OK 6" ]; then pass "$1"; else fail "$1" "it said: $said"; fi
}
PKG_CONFIG_PATH=$lib/pkgconfig
export PKG_CONFIG_PATH
if command -v pkg-config > /dev/null 2>&1; then
    succeeds "pkg-config knows the version" pkg-config --atleast-version=0.1 tessera
    # shellcheck disable=SC2046
    succeeds "C through pkg-config" cc -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/outside.c" \
        $(pkg-config --cflags --libs tessera) -o "$work/c"
    prints_sum "which runs" "$work/c"
    # shellcheck disable=SC2046
    succeeds "C++ through pkg-config" c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror "$here/outside.cpp" \
        $(pkg-config --cflags --libs tessera) -o "$work/cpp"
    prints_sum "which runs" "$work/cpp"
    # shellcheck disable=SC2046
    succeeds "static, through pkg-config" cc -std=c11 "$here/outside.c" $(pkg-config --cflags tessera) \
        "$lib/libtessera.a" $(pkg-config --static --libs tessera | sed 's/-ltessera//') -o "$work/static"
    prints_sum "which runs" "$work/static"
fi
succeeds "find_package(tessera)" cmake -S "$here" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix"
succeeds "C and C++ through CMake" cmake --build "$work/cmake"
for program in outside_c outside_static outside_cpp; do
    prints_sum "$program runs" "$work/cmake/$program"
done

# Under a launcher a static program finds the module of its MPI by the run path that tessera::static and tessera.pc
# give it; without one it says where was looked, and blames no packages (repair 21).
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
cc -std=c11 "$here/outside.c" $(pkg-config --cflags tessera) "$lib/libtessera.a" \
    $(pkg-config --static --libs tessera | sed 's/-ltessera//; s/-Wl,-rpath,[^ ]*//') -o "$work/astray"
for mpi in openmpi mpich; do
    [ -e "$lib/tessera/tessera_mpi_$mpi.so" ] && command -v mpirun.$mpi > /dev/null 2>&1 || continue
    for program in "$work/static" "$work/cmake/outside_static"; do
        said=$(timeout 60 mpirun.$mpi -n 3 "$program" 2>&1)
        if [ "$said" = "TS_OK 6" ]; then pass "$mpi: static $(basename "$program")"; else
            fail "$mpi: static $(basename "$program")" "it said: $said"; fi
    done
    refuses "$mpi: a static program without a run path" "tessera_mpi_$mpi.so, is not in " \
        timeout 60 mpirun.$mpi -n 1 "$work/astray"
    says "which finds it by TESSERA_MODULE_PATH" 0 "TS_OK 6" \
        env TESSERA_MODULE_PATH="$lib/tessera" timeout 60 mpirun.$mpi -n 3 "$work/astray"
done
finish
