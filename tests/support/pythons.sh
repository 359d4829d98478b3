#!/bin/sh
# The core's tests on other CPythons: pythons.sh INTERPRETER [...], such as python3.12 /opt/bin/python3.14t.  Each has a
# folder in build/pythons, with a copy of the tree and an environment of its own, and is built there.  WORDS has further
# arguments for pytest, such as "-k allreduce".
#
# An interpreter that is not here comes from Debian sid if this is root and debootstrap is installed: a system in a folder,
# 450 MB and two minutes.  If it is not there either, it is named and left out; if all are, that is a failure.
set -eu

CORE="tests/test_checkout.py tests/algorithms tests/collectives tests/control tests/kernels tests/system tests/transports"
ROOT=$(cd "$(dirname "$0")/../.." && pwd)

# The files that git knows, or would know, with their times: only what has changed is built again.
copy() {
    mkdir -p "$1"
    (cd "$ROOT" && git ls-files -z --cached --others --exclude-standard |
        xargs -0 sh -c 'for each; do [ ! -e "$each" ] && [ ! -L "$each" ] || printf "%s\0" "$each"; done' - |
        tar --null --no-recursion -T - -c) | tar -x -C "$1"
}

# Build, with few optimizations, and test, in a copy.  Left out are the files that need torch, which are counted, what needs an
# MPI or torch's launcher, a wheel of the files that git knows, and a picture of matplotlib.
try() {
    cd "$2"
    [ -x .venv/bin/python ] || "$1" -m venv .venv
    HOCKET_CFLAGS=${HOCKET_CFLAGS--O1} .venv/bin/python -m pip install --quiet --editable '.[test-core,metrics]'
    torch=$(grep -rlE '^ *(import|from) torch\b' $CORE --include="test_*.py")
    echo "$1: $(.venv/bin/python -VV), without the $(echo "$torch" | wc -l) files that need torch"
    .venv/bin/pytest --workers 2 -p no:cacheprovider $CORE $(printf -- '--ignore=%s ' $torch) \
        --ignore tests/transports/mpi --ignore tests/transports/test_third_party_c.py \
        --deselect tests/control/managers/test_pmi.py::test_ranks_meet_twice_and_an_mpi_can_begin_after \
        --deselect tests/control/managers/test_pmix.py::test_a_bare_prterun_tells_the_number_of_ranks \
        --deselect tests/collectives/job/test_launchers.py::test_under_the_real_launcher \
        --deselect tests/algorithms/drawing/test_draw.py::test_save_png ${WORDS:-}
}

# The same inside a folder with a Debian.  Its mounts are in a namespace of their own, and end with it.
try_in_debian() {
    unshare --mount sh -euc '
        for each in proc sys dev; do mount --rbind "/$each" "$1/$each"; done
        exec chroot "$1" sh /hocket/tests/support/pythons.sh --here "$2" /hocket' - "$1" "$2"
}

debian() {
    [ "$(id -u)" = 0 ] && command -v debootstrap > /dev/null || return 1
    [ -e "$1/ready" ] || debootstrap --variant=minbase --include="ca-certificates,g++,gcc,iproute2,$2-dev,$2-venv" \
        sid "$1" > /dev/null || return 1
    touch "$1/ready"
    # What this machine's pip, and what it connects by, need.
    cp /etc/resolv.conf "$1/etc/"
    for each in /etc/pip.conf /etc/xdg/pip /etc/ssl/certs/ca-certificates.crt; do
        [ ! -e "$each" ] || { mkdir -p "$1/$(dirname "$each")" && cp -rL "$each" "$1/$(dirname "$each")/"; }
    done
}

if [ "$1" = --here ]; then
    try "$2" "$3"
    exit
fi
ran=0
for python; do
    folder=$ROOT/build/pythons/$(basename "$python")
    if "$python" -c "" 2> /dev/null; then
        copy "$folder"
        (try "$python" "$folder")
    elif debian "$folder" "$python"; then
        copy "$folder/hocket"
        try_in_debian "$folder" "$python"
    else
        echo "$python: not here, and not tested"
        continue
    fi
    ran=$((ran + 1))
done
[ "$ran" -gt 0 ]
