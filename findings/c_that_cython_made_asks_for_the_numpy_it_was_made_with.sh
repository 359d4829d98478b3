#!/usr/bin/env bash
# Guess: C that Cython has made of a module with `cimport numpy` compiles with the headers of any NumPy 2, as what is
# compiled with one NumPy 2 runs with an older one.
# Seen (Cython 3.3.1, NumPy 2.5.5 and 2.4.6): NumPy brings the declarations that Cython reads, and they hold inline
# functions, which become part of each module's C whether it calls them or not.  Those of 2.5 read fields of a ufunc and
# of a datetime by accessors that 2.4's headers do not have: an empty module made beside 2.5.5 does not compile beside
# 2.4.6.  The other way round it does.  So C in a source distribution, or a build folder that two environments share,
# asks for the NumPy of its making or a newer one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --no-compile cython==3.3.1
for version in 2.4.6 2.5.5; do
    env/bin/pip install --quiet --no-compile --no-deps --target $version --ignore-requires-python --only-binary=:all: \
        --python-version 3.13 --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 numpy==$version
    echo "cimport numpy" > module.pyx
    env/bin/cython -3 -I $version -o $version.c module.pyx
done
include=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')
compiles() { gcc -w -fsyntax-only -I"$include" -I"$2/numpy/_core/include" "$1.c" 2> said; }
for made in 2.4.6 2.5.5; do
    for headers in 2.4.6 2.5.5; do
        if compiles $made $headers; then found=compiles; else found=fails; fi
        echo "made with $made, headers of $headers: $found"
        [ $found = fails ] && grep -o "_Py[A-Za-z]*_[A-Za-z_]*" said | sort -u
        wanted=compiles
        [ $made$headers = 2.5.52.4.6 ] && wanted=fails
        [ $found = $wanted ] || { echo "changed"; exit 1; }
    done
done
