from noetic_py import Harness
from @MODULE@ import plugin

# Without `plugins=` a harness loads every plugin that is installed.
harness = Harness(model="openai:gpt-5-mini", plugins=[plugin])
