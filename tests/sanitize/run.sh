#!/bin/sh
# The whole library under AddressSanitizer + UBSan, then under ThreadSanitizer: `make sanitize`.
#
# Builds into a copy of the working tree (SANITIZE_DIR, default build/sanitize), never into the tree itself, and ends
# with 0 only if nothing was reported.  PYTHON chooses the interpreter; arguments choose a part: address, thread.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
place=${SANITIZE_DIR:-$here/build/sanitize}
parts=${*:-address thread}
failed=""

build() { # name, flags
    mkdir -p "$place/$1"
    (cd "$here" && git ls-files -z --cached --others --exclude-standard) |
        (cd "$here" && xargs -0 sh -c 'for f; do [ -e "$f" ] || [ -L "$f" ] && printf "%s\0" "$f"; done' _) |
        (cd "$here" && tar -cf - --null -T -) | tar -xf - -C "$place/$1"
    (cd "$place/$1" && HOCKET_CFLAGS="$2 -fno-omit-frame-pointer -g -O1" \
        "$python" setup.py build_ext --inplace -j2 >build.log 2>&1) || { tail -20 "$place/$1/build.log"; exit 1; }
}

runtime() { gcc -print-file-name="$1"; }

report() { # name: what the sanitizer wrote beside its log_path, and the exit code of the job
    if [ "$2" -ne 0 ] || ls "$place/$1"/report.* >/dev/null 2>&1; then
        failed="$failed $1"
        head -n 60 "$place/$1"/report.* 2>/dev/null || true
    fi
    echo "sanitize: $1: exit $2, $(ls "$place/$1"/report.* 2>/dev/null | wc -l) reports"
}

for part in $parts; do
    rm -f "$place/$part"/report.* 2>/dev/null || true
    code=0
    case $part in
    address)
        build address "-fsanitize=address,undefined"
        # CPython leaves memory to the system at exit: leaks are not looked for.
        LD_PRELOAD="$(runtime libasan.so) $(runtime libubsan.so)" PYTHONMALLOC=malloc \
            ASAN_OPTIONS="detect_leaks=0 allocator_may_return_null=1 log_path=$place/address/report" \
            UBSAN_OPTIONS="print_stacktrace=1 log_path=$place/address/report" \
            PYTHONPATH="$place/address/src:$place/address/tests:$place/address/tests/sanitize" \
            "$python" "$here/tests/sanitize/sanitized_job.py" processes threads || code=$?
        ;;
    thread)
        build thread "-fsanitize=thread"
        LD_PRELOAD="$(runtime libtsan.so)" PYTHONMALLOC=malloc \
            TSAN_OPTIONS="suppressions=$here/tests/sanitize/tsan.supp ignore_noninstrumented_modules=0 exitcode=0 log_path=$place/thread/report" \
            PYTHONPATH="$place/thread/src:$place/thread/tests:$place/thread/tests/sanitize" \
            "$python" "$here/tests/sanitize/sanitized_job.py" threads || code=$?
        ;;
    *) echo "sanitize: no part called $part; there are address and thread" >&2; exit 64 ;;
    esac
    report "$part" "$code"
done
[ -z "$failed" ] || { echo "sanitize: failed:$failed" >&2; exit 1; }
echo "sanitize: clean"
