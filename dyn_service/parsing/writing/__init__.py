"""A `Description` as a file of URDF, MJCF or SDFormat, with a note on each thing that it cannot say."""
