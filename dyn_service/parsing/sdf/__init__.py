"""SDFormat, Gazebo's and Drake's: http://sdformat.org/spec."""
