from noetic_py import Harness

harness = Harness(model="@PREFIX@:large")
