"""Hardware-in-the-loop tests with pytest: one test for lockstep, real time and hardware. See docs/hil.md.

Importing this package is quick and loads no engine: pytest loads it in every run, also where no test asks for it.
"""
