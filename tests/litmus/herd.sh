#!/bin/sh
# Build herd7 into build/herd7, unless HERD7 names one or the PATH has it.  HERD_SOURCE: a git repository, or a clone, of
# herd/herdtools7.  7.57 is the newest that Debian 12's OCaml and zarith compile.
set -eu

VERSION=7.57
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
PLACE=$ROOT/build/herd7
if [ -n "${HERD7:-}" ] || [ -x "$PLACE/bin/herd7" ] || command -v herd7 > /dev/null; then
    exit
fi
for each in dune menhir ocaml git; do
    command -v "$each" > /dev/null && continue
    echo "herd7 is not here, and to build it $each is missing: apt-get install git menhir ocaml-dune libzarith-ocaml-dev" >&2
    exit 1
done
rm -rf "$PLACE"
mkdir -p "$PLACE/bin" "$PLACE/source"
git -c advice.detachedHead=false clone --quiet --depth 1 --branch "$VERSION" "${HERD_SOURCE:-https://github.com/herd/herdtools7}" "$PLACE/source"
cd "$PLACE/source"
echo "building herd7 $VERSION"
sh ./version-gen.sh "$PLACE"
dune build --root . --profile release herd/herd.exe
cp _build/default/herd/herd.exe "$PLACE/bin/herd7.new"
cp -r herd/libdir "$PLACE/"
mv "$PLACE/bin/herd7.new" "$PLACE/bin/herd7"
