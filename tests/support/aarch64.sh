#!/bin/sh
# hocket on an emulated aarch64: `make test-aarch64`.  TESTS: what to run instead of the core's tests; WORDS: words for pytest
# in place of those that choose which of them, as `--cpu 0.5`: also what starts processes; `--cpu 1000`: all, which takes hours.
#
# build/aarch64 gets a Debian of that kind, unpacked and not installed, and wheels of NumPy and pytest; all extensions come
# from the cross compiler, by this machine's Cython.  Then the bits of all kernels are compared with this machine's, and
# the tests run under qemu-user.  It needs root, Linux 6.7 (binfmt_misc in a namespace of its own: nothing stays registered),
# and apt-get install debootstrap gcc-aarch64-linux-gnu qemu-user-static.
#
# tests/algorithms are pure Python, and the same everywhere.  An emulator on x86-64 keeps x86-64's order of memory: that is
# what `make test-litmus` is for.
set -eu

CORE="tests/collectives tests/control tests/kernels tests/litmus tests/system tests/transports"
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
PLACE=$ROOT/build/aarch64
SYSTEM=$PLACE/system
PYTHON=$ROOT/${VENV:-.venv}/bin/python
VERSION=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
SUITE=${SUITE:-bookworm}    # whose python3 has the version of the environment, which makes the C
PACKAGES=$SYSTEM/usr/local/lib/python$VERSION/dist-packages
WHEELS="pytest pytest-timeout pytest-xdist hypothesis ml_dtypes jsonschema PyYAML"

inside() {
    unshare --user --map-root-user --mount sh -euc '
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
        printf %s ":aarch64:M::\\x7fELF\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\xb7\\x00:$(
            )\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff:$(
            )$(command -v qemu-aarch64-static):F" > /proc/sys/fs/binfmt_misc/register
        for each in proc sys dev; do mount --rbind "/$each" "$1/$each"; done
        mount -t tmpfs none "$1/tmp"
        folder=$1
        shift
        exec chroot "$folder" env HOME=/tmp "$@"' - "$SYSTEM" "$@"
}

if [ ! -e "$PLACE/ready" ]; then
    for each in debootstrap aarch64-linux-gnu-gcc qemu-aarch64-static; do
        command -v "$each" > /dev/null && continue
        echo "$each is missing: apt-get install debootstrap gcc-aarch64-linux-gnu qemu-user-static" >&2
        exit 1
    done
    rm -rf "$PLACE"
    mkdir -p "$SYSTEM/usr/bin" "$SYSTEM/usr/sbin" "$SYSTEM/usr/lib"
    for each in bin sbin lib; do ln -s "usr/$each" "$SYSTEM/$each"; done
    debootstrap --arch=arm64 --variant=minbase --download-only --include=python3,python3-dev,openssl "$SUITE" "$PLACE/packages"
    for each in "$PLACE"/packages/var/cache/apt/archives/*.deb; do dpkg-deb -x "$each" "$SYSTEM"; done
    [ -e "$SYSTEM/usr/bin/python$VERSION" ] || { echo "$SUITE has no python$VERSION; name another Debian by SUITE" >&2; exit 1; }
    "$PYTHON" -m pip install --quiet --target "$PACKAGES" --platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64 \
        --python-version "$VERSION" --only-binary=:all: "numpy==$("$PYTHON" -c 'import numpy; print(numpy.__version__)')" $WHEELS
    echo /hocket/src > "$PACKAGES/hocket.pth"
    rm -rf "$PLACE/packages"
    touch "$PLACE/ready"
fi

mkdir -p "$SYSTEM/hocket"
find "$SYSTEM/hocket" -path "$SYSTEM/hocket/build" -prune -o -type f ! -name '*.so' -exec rm {} +    # what is gone from here
cd "$ROOT"
git ls-files -z --cached --others --exclude-standard |
    xargs -0 sh -c 'for each; do [ ! -e "$each" ] && [ ! -L "$each" ] || printf "%s\0" "$each"; done' - |
    tar --null --no-recursion -T - -c | tar -x -C "$SYSTEM/hocket"
cd "$SYSTEM/hocket"
# QEMU keeps bytes for each page that is only reserved, and does not give them back: 4 GiB for a window, not 64.
sed -i 's/^RESERVE = 1 << 36/RESERVE = 1 << 32/' transports/shm/window.pyx
CC="aarch64-linux-gnu-gcc --sysroot=$SYSTEM" LDSHARED="aarch64-linux-gnu-gcc --sysroot=$SYSTEM -shared" \
    _PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=".cpython-$(echo "$VERSION" | tr -d .)-aarch64-linux-gnu.so" \
    HOCKET_CFLAGS="-I$SYSTEM/usr/include/python$VERSION -I$SYSTEM/usr/include -I$SYSTEM/usr/include/aarch64-linux-gnu" \
    "$PYTHON" setup.py --quiet build_ext --inplace

# Instructions, by the log of one emulator for both processors: of a message of 8 bytes in shared memory, and of a record.
counted() { "$1" -singlestep -d exec,nochain -D /dev/stderr "$2" "$3" "$4" 2>&1 | wc -l; }
for part in 1:message 2:record; do
    for each in "x86_64:gcc" "aarch64:aarch64-linux-gnu-gcc --sysroot=$SYSTEM"; do
        program=$PLACE/short_path.${each%%:*}
        ${each#*:} -O3 -static -I"$ROOT" -o "$program" "$ROOT/tests/transports/shm/short_path.c"
        more=$(counted "qemu-${each%%:*}-static" "$program" "${part%%:*}" 300)
        less=$(counted "qemu-${each%%:*}-static" "$program" "${part%%:*}" 100)
        echo "${each%%:*}: $(((more - less) / 200)) instructions a ${part#*:}"
    done
done

PYTHONPATH=$ROOT/src "$PYTHON" "$ROOT/tests/support/kernel_bits.py" > "$PLACE/here.txt"
inside python3 /hocket/tests/support/kernel_bits.py > "$PLACE/there.txt"
diff "$PLACE/here.txt" "$PLACE/there.txt"
echo "$(wc -l < "$PLACE/here.txt") results of the kernels have this machine's bits"
# The emulator is some fifteen times as slow: of the core's tests those run that start nothing and take half a second here.
# Jobs have limits of seconds, which they keep there only where nothing else runs; the meetings of test_resets.py do not.
# There is no compiler inside, no torch and no MPI; QEMU has no process_vm_readv, no mbind and no huge pages, takes every option
# of TCP for four bytes and has little of TCP_INFO and nothing of queues; its flags for the pages of test_checked.py's windows take 15 GB.
cd "$ROOT"
without=$(grep -rlE "^ *(import|from) torch\b|support\.(compiled|gpu)|support import (c_rules|gpu|headers)|\"gcc\"" tests --include='test_*.py' | sed 's/^/--ignore=/')
inside sh -c 'cd /hocket && exec env PYTHONSAFEPATH=1 python3 -m pytest --workers 2 -p no:cacheprovider "$@"' - $without \
    --ignore tests/transports/shm/test_far.py --ignore tests/transports/shm/test_checked.py --ignore tests/transports/mpi \
    --deselect tests/system/test_tcp_info.py::test_numbers_of_a_connection \
    --deselect tests/control/test_link.py::test_the_shortest_round_trip \
    --deselect tests/control/elastic/test_resets.py::test_all_go_on_and_a_newcomer_comes_in_whatever_breaks_when \
    --deselect tests/collectives/waiting/test_holding.py::test_the_kernel_says_how_it_queues \
    --deselect tests/transports/tcp/test_congestion.py::test_a_control_by_its_name \
    --deselect tests/transports/shm/test_ring.py::test_memory_of_another_process_is_read_if_the_system_lets_us \
    --deselect tests/transports/shm/test_window.py::test_memory_that_may_be_gone_when_it_is_touched_is_refused \
    --deselect tests/transports/shm/test_window.py::test_slots_lie_on_the_node_of_their_reader \
    ${WORDS:---quick --cpu 0.5} ${TESTS:-$CORE}
