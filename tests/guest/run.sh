#!/usr/bin/env bash
# run.sh COMMAND [ARG...]   run COMMAND in a small virtual machine that has RDMA devices; exit with its exit code.
#
# The guest is Debian's stock kernel with Soft-RoCE (rdma_rxe) over this machine's own files, which it sees as they are
# and cannot change: what it writes goes into its memory, except below $GUEST_OUT.  COMMAND gets the caller's
# environment and directory, and runs as root; its stdout and stderr come back apart; its stdin is /dev/null; it has no
# network but its own.  rxe0 is on veth0 (10.77.0.1, GID index 1 for RoCE v2), rxe1 on the other end of that pair, veth1
# (10.77.0.2).  What goes from rxe0 to rxe0 is handed over inside the driver, what goes from rxe0 to rxe1 is packets.
#
#     tests/guest/run.sh ibv_devinfo
#     GUEST_CPUS=4 tests/guest/run.sh .venv/bin/python -m pytest tests/guest -k kill
#
# Settings: GUEST_CPUS (2)  GUEST_MEMORY (3072, MiB)  GUEST_TIMEOUT (900, seconds)
#   GUEST_OUT   a folder of this machine that the guest may write to, at the same path
#   GUEST_LOG   a file for the guest's kernel log
#   GUEST_CACHE ($XDG_CACHE_HOME/hocket-guest, ~/.cache/hocket-guest): 200 to 300 MB, filled when first needed (fill.sh)
#   GUEST_ACCEL kvm or tcg; without it kvm where the processor has it and /dev/kvm may be written, else emulation
# `run.sh --fill` only fills the cache.  `run.sh --include` prints where libibverbs' headers are (infiniband/verbs.h).
# Exit: COMMAND's code; 124 if the time ran out, 125 if the guest failed.  The guest ends with this script, however
# that ends, and when nobody reads its output any more.
# Needs: Debian (made on 12) on x86-64, python3, and nothing that a bare installation lacks; root is not needed.
# A file changed on this machine while the guest runs may be seen stale there.
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,/^set/{/^set/d;s/^# \?//p}' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
export GUEST_CACHE=${GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hocket-guest}
root=$GUEST_CACHE/root
"$here/fill.sh" >&2
case $1 in --fill) exit;; --include) echo "$root/usr/include"; exit;; esac

# ------------------------------------------------------------------------------- what the guest finds in its control folder
for old in "${TMPDIR:-/tmp}"/hocket-guest.*; do  # of scripts that were killed
  pid=${old##*/hocket-guest.}; [ ! -O "$old" ] || kill -0 "${pid%%.*}" 2>/dev/null || rm -rf "$old"
done
scratch=$(mktemp -d "${TMPDIR:-/tmp}/hocket-guest.$$.XXXXXX")  # 0700: the caller's environment lies here
machine='' readers=()
end() {
  trap - EXIT; [ -z "$machine" ] || { kill "$machine" 2>/dev/null && wait "$machine" || :; } 2>/dev/null
  kill "${readers[@]}" 2>/dev/null || :; rm -rf "$scratch"
}
trap end EXIT; trap 'exit 130' INT; trap 'exit 143' TERM HUP
mkdir "$scratch/control"; mkfifo "$scratch/o" "$scratch/e"
cp "$here/inside.sh" "$scratch/control/"
{ export -p; printf 'cd %q\n' "$PWD"; printf '%q ' "$@"; } >"$scratch/control/command"
echo "${GUEST_OUT-}" >"$scratch/control/out"

# ------------------------------------------------------------------------------------------------------ the machine
libraries=$root/usr/lib/x86_64-linux-gnu
qemu=$(PATH=$root/usr/bin:$PATH type -P qemu-system-x86_64)
with=(); case $qemu in "$root"/*) with=(env "LD_LIBRARY_PATH=$libraries" "QEMU_MODULE_DIR=$libraries/qemu");; esac
if [ -z "${GUEST_ACCEL-}" ]; then
  # A /dev/kvm without these flags may be one that runs only kernels made for it, and interprets others.
  GUEST_ACCEL=tcg; ! grep -qwE 'vmx|svm' /proc/cpuinfo || [ ! -w /dev/kvm ] || GUEST_ACCEL=kvm
fi
case $GUEST_ACCEL in kvm) accelerator=(-accel kvm -cpu host);; *) accelerator=(-accel tcg,thread=multi,tb-size=256 -cpu max);; esac
share() {  # tag, folder, more
  echo -fsdev "local,id=$1,path=$2,security_model=none,multidevs=remap$3" -device "virtio-9p-pci,fsdev=$1,mount_tag=$1"
}
port() { echo -chardev "file,id=$1,path=$scratch/$1" -device "virtserialport,chardev=$1,name=$1"; }
cat "$scratch/o" & readers+=($!)
cat "$scratch/e" >&2 & readers+=($!)
# Without tsc=reliable every look at the clock would leave the guest.
setpriv --pdeathsig TERM timeout -k 5 "${GUEST_TIMEOUT:-900}" "${with[@]}" "$qemu" \
  -M q35,hpet=off "${accelerator[@]}" -smp "${GUEST_CPUS:-2}" -m "${GUEST_MEMORY:-3072}" \
  -nodefaults -no-user-config -display none -no-reboot \
  -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" -L /usr/share/qemu -L /usr/share/seabios \
  -kernel "$GUEST_CACHE/kernel" -initrd "$GUEST_CACHE/initrd" -serial "file:$scratch/log" \
  -append "console=ttyS0 panic=-1 mitigations=off tsc=reliable random.trust_cpu=on nowatchdog" \
  $(share host / ,readonly=on) $(share extra "$root" ,readonly=on) $(share control "$scratch/control" "") \
  ${GUEST_OUT:+$(share out "$GUEST_OUT" "")} -device virtio-serial $(port o) $(port e) \
  </dev/null >"$scratch/qemu" 2>&1 & machine=$!

# ------------------------------------------------------------------------------------------------------------ its end
code=0
wait -n "$machine" "${readers[@]}" || code=$?
if kill -0 "$machine" 2>/dev/null; then  # a reader was first: QEMU has closed its pipe, or nobody reads ours
  [ "$code" = 0 ] || [ -s "$scratch/control/code" ] || exit 141  # as of SIGPIPE
  code=0; wait "$machine" || code=$?
fi
machine=''
[ -z "${GUEST_LOG-}" ] || cp "$scratch/log" "$GUEST_LOG" || :
if [ -s "$scratch/log" ]; then wait "${readers[@]}" || :; fi  # else QEMU never opened the pipes, and they wait for it
[ ! -s "$scratch/control/code" ] || exit "$(<"$scratch/control/code")"
case $code in 124|137) echo "guest: the time ran out (GUEST_TIMEOUT=${GUEST_TIMEOUT:-900})" >&2; exit 124;; esac
echo "guest: it did not finish (QEMU's exit code: $code)" >&2
{ cat "$scratch/qemu"; tail -n 15 "$scratch/log"; } >&2 2>/dev/null || :
exit 125
