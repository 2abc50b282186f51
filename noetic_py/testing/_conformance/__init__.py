"""The cases of the conformance suite, private: `noetic_py.testing.conformance` puts them together."""
