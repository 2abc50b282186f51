"""`Squeeze`: what is stored of each step is compressed, and restored when it is read."""

import zlib

from noetic_py.checkpoints import DecodedPayload, RecordPlace, RecordTransform


class Squeeze(RecordTransform):
    """Compresses records. Each is marked with the name, so keep it: reading them needs this class."""

    name = "@PREFIX@"

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        """Compress a record."""
        return zlib.compress(payload)

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        """Restore a record."""
        return DecodedPayload(zlib.decompress(payload))
