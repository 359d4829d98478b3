#!/usr/bin/env bash
# Guess: a tensor that an actor returns under Ray Direct Transport arrives as it is, or is refused with an error where
# it is used; the actors go on.
# Seen (ray 2.60.0, torch 2.13.0): with tensor_transport="gloo" a contiguous tensor arrives.  A transposed one, a column
# or an expanded one has Ray kill both actors, the one that returned it and the one that was to use it, with all that
# they hold: Gloo refuses what is not contiguous, and Ray takes that for a transfer that hangs.  ray.get of the same
# object in the driver, which does not go by Gloo, is fine.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6 ray==2.60.0
cat > program.py <<'PY'
import ray
import torch
from ray.experimental.collective import create_collective_group

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)


@ray.remote(num_cpus=1)
class Actor:
    @ray.method(tensor_transport="gloo")
    def make(self, turned):
        x = torch.arange(6.0).reshape(2, 3)
        return x.t() if turned else x

    def sum(self, x):
        return float(x.sum())

    def lives(self):
        return True


def dead(actor):
    try:
        return not ray.get(actor.lives.remote(), timeout=60)
    except ray.exceptions.ActorDiedError:
        return True


one, two = Actor.remote(), Actor.remote()
create_collective_group([one, two], backend="gloo")
assert ray.get(two.sum.remote(one.make.remote(False)), timeout=60) == 15.0
assert not dead(one) and not dead(two)
turned = one.make.remote(True)
try:
    raise SystemExit(f"changed: it arrives, {ray.get(two.sum.remote(turned), timeout=60)}")
except ray.exceptions.RayError as error:
    print(type(error).__name__)
both = [dead(one), dead(two)]
print("both are dead:", both)
assert both == [True, True], "changed"
ray.shutdown()
PY
RAY_raylet_start_wait_time_s=300 env/bin/python program.py 2> errors.txt || { tail -5 errors.txt; exit 1; }
