"""The command line: `dyn`.

main         arguments, `dyn serve`, `dyn call`, `dyn metrics`; errors as one line and an exit status
robots       `dyn robots`, `check`, `convert`, `bench`;  bench: the measurements
launch       `dyn launch`, `dyn run`, commands of single nodes
node, topic, param, service   commands for running nodes, as in ROS 2
bag, bag_recording   `dyn bag`
view, foxglove   `dyn view`, `dyn foxglove`
keys, metrics, new   `dyn keys`, `dyn metrics`, `dyn new`;  templates/: files that `dyn new` copies
calling      values and output of `dyn call`
finding      default server; completion of names
progress, yaml_text   output; values as YAML
"""
