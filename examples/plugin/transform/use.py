from noetic_py import Harness
from @MODULE@ import Squeeze

harness = Harness(checkpoints="sqlite:runs.db", record_transforms=[Squeeze()])
