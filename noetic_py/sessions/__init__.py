"""Sessions: conversations of many users in one harness, each with one turn at a time.

A session is what stays between the runs of a conversation: its items and its states. A turn is a run that begins from
there. Who may begin a turn is decided by a lock in this process, in the order of arrival, and by the lease of the
session's stream among processes.
"""
