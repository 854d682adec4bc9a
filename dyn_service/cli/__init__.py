"""The command line: `dyn`.

main              `dyn call`, `metrics`, `launch`, `run`, commands of single nodes; errors and exit status
serve             `dyn serve`
robots            `dyn robots`, `convert`, `export`, `study`
robot_check       `dyn check`: receipt, findings as text, JSON or SARIF, repairs
identify          `dyn identify`
bench             `dyn bench`
excite            `dyn excite`
nodes             `dyn topic`, `node`, `lifecycle`, `param`, `service`: running systems; default server; completion
bag               `dyn bag`
bag_recording     `dyn bag record`, `play` and `verify`
view              `dyn view`, `dyn foxglove`
fallback_frames   frames of plants that publish none, for `view`
keys              `dyn keys`
metrics           a server's metrics for Prometheus
new               `dyn new`
templates/        files that `dyn new` copies
calling           values and output of `dyn call`
console           output and arguments that several commands have
yaml_text         values as YAML
"""
