"""Pure rules and values: no IO, no environment; only ``clock`` reads time and only ``ids`` draws entropy."""
