from noetic_py import Harness

harness = Harness(model="openai:gpt-5-mini", checkpoints="@PREFIX@:address")
