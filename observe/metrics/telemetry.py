"""For OpenTelemetry: observable instruments, read when its exporter asks.  Needs `pip install 'hocket[metrics]'`.

    from hocket.observe.metrics.telemetry import observe

    observe(comm)           # the program has set its MeterProvider
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

import hocket
from hocket.observe.metrics.families import FAMILIES, MetricsReader


def observe(*comms: hocket.Communicator, meter: Meter | None = None) -> None:
    """This rank's numbers on these communicators, as `hocket.calls` and so on; they end with the communicators."""
    meter = meter or get_meter("hocket", hocket.__version__)
    reader = MetricsReader(comms)
    for name, family in FAMILIES.items():
        make = meter.create_observable_counter if family.counts else meter.create_observable_gauge
        dotted = name.replace("_", ".", 1)
        make(dotted, callbacks=[_callback(name, reader)], unit=family.unit, description=family.about)


def _callback(name: str, reader: MetricsReader) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(options: CallbackOptions) -> Iterable[Observation]:
        labels = FAMILIES[name].labels
        return [Observation(value, dict(zip(labels, each, strict=True))) for each, value in reader.read()[name].items()]

    return read
