"""The same works beside other libraries: `python -m benchmarks.compare`."""
