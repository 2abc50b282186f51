"""Sessions: conversations of many users in one harness, each with one turn at a time.

A session is what stays between the runs of a conversation: its items and its states. A turn is a run that begins from
there. Turns take a lock in this process, in order of arrival, and the lease of the
session's stream among processes.
"""
