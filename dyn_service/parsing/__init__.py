"""Readers and writers of robot files. Each reader returns a `Description`; nothing later depends on the format.

conversion       `dyn convert`
files            reads a file of any format, or text
joint_chains     several joints of one body as links and joints
joint_files      YAML files with passive parameters of joints, motors and loops
mjcf/            reader of MJCF
sdf/             reader of SDFormat
urdf/            reader of URDF
linter           findings of `dyn check` from shapes, mesh files, controllers
pose             frames and their representations in files
quantities       checked numbers
repairs          repairs of a robot file in place, `dyn check --fix`
report           the report of an import
rules            the table of the rules of `dyn check`
shapes           visual and collision shapes
structure        checks that links and joints form one tree
transmissions    gear ratios, torque constants and rotor inertias of URDF
writing/         writers by format
xacro            xacro files
xml_elements     XML text and files -> elements with line numbers
"""
