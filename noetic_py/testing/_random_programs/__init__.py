"""The parts of `noetic_py.testing.random_programs`."""
