#!/usr/bin/env bash
# Guess: `scontrol show hostnames` writes a list out as it is read, the last bracket fastest, as python-hostlist and
# ClusterShell do, which exist to read Slurm's lists; and it takes what they take.
# Seen (Slurm 22.05.8, python-hostlist 2.3.0, ClusterShell 1.10): with two brackets so.  With three the second bracket is
# the slowest: host 3 is r2x0y3 for Slurm and r1x1y3 for the two.  Ranks that are dealt to hosts by the one list and
# found by the other are on other hosts than it says.  And letters behind a bracket, n[1-2]-ib, are an invalid list to Slurm.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq slurm-client=22.05.8-4+deb12u3 slurm-wlm-basic-plugins=22.05.8-4+deb12u3 2> downloads || cat downloads
for each in *.deb; do dpkg-deb -x "$each" .; done
python3 -m pip install --quiet --target packages python-hostlist==2.3.0 ClusterShell==1.10
printf 'ClusterName=any\nSlurmctldHost=any\nPluginDir=%s\n' "$PWD/usr/lib/x86_64-linux-gnu/slurm-wlm" > slurm.conf
export SLURM_CONF=$PWD/slurm.conf LD_LIBRARY_PATH=$PWD/usr/lib/x86_64-linux-gnu/slurm-wlm PYTHONPATH=$PWD/packages
read_by() {  # who, list
    case $1 in
    slurm) usr/bin/scontrol show hostnames "$2" 2>&1 | paste -sd ' ' ;;
    hostlist) python3 -c "import sys, hostlist; print(*hostlist.expand_hostlist(sys.argv[1]))" "$2" ;;
    ClusterShell) python3 -c "import sys; from ClusterShell.NodeSet import NodeSet; print(*NodeSet(sys.argv[1]))" "$2" ;;
    esac
}
usr/bin/scontrol --version
two="r1x0 r1x1 r2x0 r2x1" three="r1x0y3 r1x0y4 r1x1y3 r1x1y4 r2x0y3 r2x0y4 r2x1y3 r2x1y4"
slurm="r1x0y3 r1x0y4 r2x0y3 r2x0y4 r1x1y3 r1x1y4 r2x1y3 r2x1y4"
changed=0
check() {
    found=$(read_by "$1" "$2")
    echo "$1 $2: $found"
    [ "$found" = "$3" ] || { echo "changed: expected $3"; changed=1; }
}
for who in slurm hostlist ClusterShell; do check $who 'r[1-2]x[0-1]' "$two"; done
for who in hostlist ClusterShell; do check $who 'r[1-2]x[0-1]y[3-4]' "$three"; done
check slurm 'r[1-2]x[0-1]y[3-4]' "$slurm"
for who in hostlist ClusterShell; do check $who 'n[1-2]-ib' "n1-ib n2-ib"; done
check slurm 'n[1-2]-ib' "Invalid hostlist: n[1-2]-ib"
exit $changed
