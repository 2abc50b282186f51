"""The life of one run: its options, start and resume, lease, end, streams and listing."""
