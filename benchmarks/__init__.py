"""What the library costs, measured: `python -m benchmarks`."""
