"""The command line: `dyn`.

main              arguments, `dyn serve`, `dyn call`, `dyn metrics`; errors as one line and an exit status
robots, bench     `dyn robots`, `check`, `convert`; `dyn bench`
launch            `dyn launch`, `dyn run`, commands of single nodes
nodes, topic      `dyn node`, `lifecycle`, `param`, `service`; `dyn topic`: running systems, as in ROS 2
bag, bag_recording   `dyn bag`
view, fallback_frames   `dyn view`, `dyn foxglove`, with frames of plants that publish none
keys, metrics, new   `dyn keys`, `dyn metrics`, `dyn new`;  templates/: files that `dyn new` copies
calling           values and output of `dyn call`
finding           default server; running nodes; completion of names
console, yaml_text   output and arguments that several commands have; values as YAML
"""
