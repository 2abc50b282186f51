from noetic_py import Harness
from @MODULE@ import plugin

# Without `plugins=` a harness loads every plugin that is installed. Enter it: `async with harness: ...`
harness = Harness(plugins=[plugin])
