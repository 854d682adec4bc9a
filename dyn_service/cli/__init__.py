"""The command line: `dyn`.

main              arguments, `dyn serve`, errors as one line and an exit status
robots            `dyn robots`, `check`, `convert`
bench             `dyn bench`
launch            `dyn launch`, `dyn run`, commands of single nodes
nodes             `dyn node`, `lifecycle`, `param`, `service`: running systems, as in ROS 2
topic             `dyn topic`
bag               `dyn bag`
bag_recording     `dyn bag record` and its options
view              `dyn view`, `dyn foxglove`
fallback_frames   frames of plants that publish none, for `view`
keys              `dyn keys`
metrics           `dyn metrics`
new               `dyn new`
templates/        files that `dyn new` copies
calling           `dyn call`: values and output
finding           default server; running nodes; completion of names
console           output and arguments that several commands have
yaml_text         values as YAML
"""
