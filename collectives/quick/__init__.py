"""The short way of calls made before: tables of plans by what the caller passed, without Python on the way."""
