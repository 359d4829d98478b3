#!/usr/bin/env bash
# fill.sh: fill $GUEST_CACHE with what the guest needs (see run.sh), unless that was done.
#
#   kernel, initrd   Debian's full kernel (the -cloud- one has neither rdma_rxe nor 9p) and the modules to come up
#   root/            packages that this machine lacks: unpacked, never installed, and laid over its files in the guest
#   ready            the kernel's version and what the cache was made by and for; anything else is made anew
# 15 s where the packages come fast.  Two at once wait for each other; one that failed leaves nothing that looks ready.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${GUEST_CACHE:?}; root=$cache/root
packages=(qemu-system-x86 seabios busybox-static kmod iproute2 util-linux rdma-core ibverbs-providers ibverbs-utils
          rdmacm-utils perftest libibverbs-dev python3-pyverbs)
tools=(qemu-system-x86_64 busybox kmod ip tc rdma setpriv ibv_devinfo ib_send_lat ib_write_bw)
find_tool() { PATH=$root/usr/bin:$root/usr/sbin:$PATH:/usr/sbin:/sbin type -P "$1"; }

made_for=$(cat "$here/fill.sh" "$here/init.sh" /etc/os-release | sha256sum)
filled() {
  [ -e "$cache/ready" ] && [ "$(tail -n 1 "$cache/ready")" = "$made_for" ] || return 1
  local t; for t in "${tools[@]}"; do find_tool "$t" >/dev/null || return 1; done  # some may have been this machine's
  [ -e "$root/usr/include/infiniband/verbs.h" ]
}
! filled || exit 0
[ "$(uname -m)" = x86_64 ] && command -v apt-get >/dev/null || { echo "guest: made for Debian on x86-64" >&2; exit 125; }
mkdir -p "$cache"; exec 9>"$cache/lock"; flock 9
! filled || exit 0
echo "guest: filling $cache"
rm -rf "${cache:?}"/{ready,root,debs,lists,rd,kernel,initrd}
mkdir -p "$cache"/{debs,lists}/partial "$cache"/rd/{bin,m,k,dev,proc,sys,host,extra,control,t} "$root"/usr/{bin,sbin,lib,lib64}
for d in bin sbin lib lib64; do ln -s usr/$d "$root/$d"; done

# ------------------------------------------------------------------------------------------------------- packages
apt=(-q=2 -o APT::Sandbox::User=root -o Debug::NoLocking=1 -o Dir::Cache::Archives="$cache/debs")
archives() {
  local kernel
  kernel=$(apt-cache "${apt[@]}" depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-/ {print $2; exit}')
  [ -n "$kernel" ] && (cd "$cache/debs" && apt-get "${apt[@]}" download "$kernel" libibverbs-dev) &&
    apt-get "${apt[@]}" -y install --download-only --no-install-recommends "${packages[@]}" && version=${kernel#linux-image-}
}
if ! archives; then  # no lists, or old ones: our own, for which nobody needs to be root
  rm -f "$cache"/debs/*.deb
  apt+=(-o Dir::State::Lists="$cache/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
  apt-get "${apt[@]}" update && archives || { echo "guest: no packages; what apt-get says is above" >&2; exit 125; }
fi
for d in "$cache"/debs/*.deb; do
  dpkg-deb --fsys-tarfile "$d" |
    tar -x -C "$root" --keep-directory-symlink --no-same-owner --exclude=./usr/share/doc --exclude=./usr/share/man
done
rm -rf "$cache/debs" "$cache/lists"
find "$root/usr/lib/modules" -name '*.ko*' | grep -vE '/kernel/(net|fs|lib|crypto|block)/|/drivers/(infiniband|virtio|block|char|md)/|/drivers/net/[^/]*$' |
  xargs rm -f
find "$root/usr/lib/modules" -name '*.ko.xz' -exec xz -d {} +

# ---------------------------------------------------------------------------------------------- the kernel and its initrd
# The uncompressed kernel, which QEMU can enter directly: an emulated processor would take long to unpack it.
python3 - "$root/boot/vmlinuz-$version" "$cache/kernel" <<'PY'
import lzma, struct, sys
image = open(sys.argv[1], "rb").read()
offset, length = struct.unpack_from("<II", image, 0x248)
at = ((image[0x1F1] or 4) + 1) * 512 + offset
try:
    image = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(image[at : at + length])
except lzma.LZMAError:
    pass  # packed in another way: it unpacks itself
open(sys.argv[2], "wb").write(image)
PY
export LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu
for t in depmod modprobe; do ln -s "$(find_tool kmod)" "$cache/rd/k/$t"; done
"$cache/rd/k/depmod" -b "$root" "$version"
for m in virtio_pci 9pnet_virtio 9p overlay virtio_console rdma_rxe rdma_ucm veth sch_netem; do
  "$cache/rd/k/modprobe" -D -d "$root" -S "$version" $m
done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' |
  while read -r m; do cp "$m" "$cache/rd/m/"; basename "$m" >>"$cache/rd/modules"; done
unset LD_LIBRARY_PATH
rm -r "$cache/rd/k"; cp "$(find_tool busybox)" "$cache/rd/bin/busybox"; install -m 755 "$here/init.sh" "$cache/rd/init"
(cd "$cache/rd" && find . | ./bin/busybox cpio -o -H newc 2>/dev/null) >"$cache/initrd"
rm -rf "$cache/rd"
printf '%s\n' "$version" "$made_for" >"$cache/ready"
filled || { echo "guest: the cache lacks something in spite of all" >&2; rm "$cache/ready"; exit 125; }
