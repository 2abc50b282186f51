"""Channels: typed ways between the steps of a run, and between a run and the code around it.

A `Channel` is a declaration, made once and shared by all senders and receivers. What is under way belongs to a
run: it is made when the run first uses the channel, and closed when the run ends.

- `"queue"`: first in, first out; each message goes to one receiver. A full queue suspends its senders, first come first
  served.
- `"value"`: the latest value; receiving does not take it away.
- `"topic"`: every step that is receiving gets every message; without a receiver a message is gone.
"""

from noetic_py.channels.declared import DEFAULT_TIMEOUT, Channel, ChannelMode, Receivable, is_channel
from noetic_py.channels.live import Board, ChannelHandle, Entry, LiveChannel, Reader, from_outside, log_lost

__all__ = [
    "DEFAULT_TIMEOUT",
    "Board",
    "Channel",
    "ChannelHandle",
    "ChannelMode",
    "Entry",
    "LiveChannel",
    "Reader",
    "Receivable",
    "from_outside",
    "is_channel",
    "log_lost",
]
