"""The ground floor: items, log, state, budget, events and values. Nothing here imports from above."""
