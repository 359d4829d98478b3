"""Horovod's four programs of examples/tensorflow2 on hocket.horovod, with 2 ranks: only what CHANGES says is changed.

    python tests/frameworks/keras/horovod_examples.py PATH/TO/examples/tensorflow2 [--keras 3]

The programs are Horovod's; hocket does not bring them, and this does not fetch them.  With Keras 2 (tf-keras) the
imports are hocket's, the pictures random, and steps and epochs few.  With Keras 3 two lines are struck, too, that Keras
3 itself refuses.  Prints the last lines of each, and exits with 1 if any failed.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PICTURES = """(mnist_images, mnist_labels), _ = ((__import__("numpy").random.default_rng(hvd.rank()).integers(
        0, 256, (512, 28, 28)).astype("uint8"), __import__("numpy").arange(512) % 10), None)"""
CHANGES = {
    r"^import horovod$": "import hocket.horovod as horovod",
    r"^import horovod\.tensorflow\.keras as hvd$": "import hocket.horovod.tensorflow.keras as hvd",
    r"^import horovod\.tensorflow as hvd$": "import hocket.horovod.tensorflow as hvd",
    r"\(mnist_images, mnist_labels\), _ = \\\n.*load_data\(.*\)": PICTURES,
    r"dataset\.take\(10000 //": "dataset.take(44 //",
    r"steps_per_epoch=500 //": "steps_per_epoch=12 //",
    r"epochs=24": "epochs=4",
}
"""Lines of all of them."""
KERAS_3 = {r",\s*experimental_run_tf_function=False": "", r"opt\.variables\(\)": "opt.variables"}
"""Lines that Keras 3 refuses: an unknown argument, and a list that is called."""
SHORT = ["--no-cuda", "--model", "MobileNet", "--batch-size", "2", "--num-batches-per-iter", "2", "--num-iters", "2"]
WARM = ["--num-warmup-batches", "1"]
PROGRAMS: dict[str, list[list[str]]] = {
    "tensorflow2_mnist.py": [[], ["2", "localhost:2", "gloo"]],
    "tensorflow2_keras_mnist.py": [[], ["2", "localhost:2", "gloo"]],
    "tensorflow2_synthetic_benchmark.py": [[*SHORT, *WARM, "--fp16-allreduce"]],
    "tensorflow2_keras_synthetic_benchmark.py": [SHORT],
}
"""By program: its arguments.  With three words the MNIST programs start their ranks themselves, by horovod.run."""


def changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        text = re.sub(old, new.replace("\\", "\\\\"), text, flags=re.M)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--keras", type=int, choices=(2, 3), default=2)
    given = parser.parse_args()
    legacy = "1" if given.keras == 2 else "0"
    env = {**os.environ, "TF_USE_LEGACY_KERAS": legacy, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    failed = 0
    for name, arguments in PROGRAMS.items():
        text = changed((given.folder / name).read_text(), CHANGES | (KERAS_3 if given.keras == 3 else {}))
        for words in arguments:
            with tempfile.TemporaryDirectory() as folder:
                pathlib.Path(folder, name).write_text(text)
                launcher = [] if "localhost:2" in words else ["-m", "hocket", "run", "-n", "2", "--", sys.executable]
                command = [sys.executable, *launcher, name, *words]
                done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
            failed += done.returncode != 0
            lines = (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip().splitlines()
            last = lines[-4:] if done.returncode == 0 else lines[-40:]
            print(f"== {name} {' '.join(words)}: {done.returncode}", *last, sep="\n", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
