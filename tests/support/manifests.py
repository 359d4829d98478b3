"""Is a manifest what its CustomResourceDefinition wants?  The definition's file is given; none is kept here.

    python tests/support/manifests.py examples/cluster/volcano.yaml .../batch.volcano.sh_jobs.yaml

The definitions are in the systems' repositories: kubernetes-sigs/jobset (config/components/crd/bases/),
kubeflow/trainer (manifests/base/crds/), volcano-sh/volcano (config/crd/volcano/bases/).
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import yaml  # type: ignore[import-untyped]


def schemas(definition: pathlib.Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """apiVersion, kind and JSON schema of each version in the file."""
    for document in yaml.safe_load_all(definition.read_text()):
        spec = document["spec"]
        for version in spec["versions"]:
            name = f"{spec['group']}/{version['name']}"
            yield name, spec["names"]["kind"], closed(version["schema"]["openAPIV3Schema"])


def closed(schema: Any) -> Any:
    """The same, but a name that it does not have is wrong.  (Kubernetes drops such a field, and does not tell.)"""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    ours = schema.get("type") == "object" and isinstance(schema.get("properties"), dict)
    if ours and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def wrong(manifest: pathlib.Path, definition: pathlib.Path) -> list[str]:
    """A line for each error; also if no document of the manifest is of the definition's kind."""
    known = {(version, kind): schema for version, kind, schema in schemas(definition)}
    found, seen = [], 0
    for document in yaml.safe_load_all(manifest.read_text()):
        schema = known.get((document["apiVersion"], document["kind"]))
        if schema is not None:
            seen += 1
            errors = jsonschema.Draft7Validator(schema).iter_errors(document)
            found += [f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in errors]
    return found if seen else [f"{manifest} has nothing of {', '.join(map(str, known))}"]


if __name__ == "__main__":
    problems = wrong(*map(pathlib.Path, sys.argv[1:3]))
    print("\n".join(problems) or f"{sys.argv[1]} is valid")
    sys.exit(bool(problems))
