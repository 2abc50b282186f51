# A name that the package does not have is an error, however it is written.
import noetic_py
from noetic_py import until
from noetic_py.errors import Abort  # E
from noetic_py.until import max_round  # E

noetic_py.Harness()
noetic_py.Harnes()  # E
noetic_py.until.max_rounds(3)
until.max_round(3)  # E
