#!/usr/bin/env bash
# The tests of networks from Python: they need torch and torchvision for Python.
#
#   small_zoo.sh same_bytes|loads_back|export_model ZOO_CHECK FOLDER
#
# same_bytes    ResNet, GoogLeNet, a vision Transformer and nn.TransformerEncoder are trained to the same bytes in pieces
# loads_back    load_state_dict takes the weights that gpipe has saved, and Python computes with them what gpipe does
# export_model  what examples/export_model.py says to its users
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
test=$1
zoo_check=$2
folder=$3/$test
export OMP_NUM_THREADS=1

python=
for candidate in "${GPIPE_PYTHON:-}" /usr/bin/python3 python3; do
  [[ -n $candidate ]] && "$candidate" -c 'import torchvision' 2>/dev/null && python=$candidate && break
done
if [[ -z $python ]]; then
  echo "NOT TESTED: networks from Python. No Python has torchvision; scripts/install-deps zoo installs Debian's"
  exit 0
fi
mkdir -p "$folder"

case $test in
  same_bytes)
    "$python" "$root/tests/zoo/export_zoo.py" "$folder" --small
    "$zoo_check" "$folder" --quick --no-speed
    ;;
  loads_back)
    "$python" "$root/tests/zoo/export_zoo.py" "$folder" --only resnet,encoder,shared
    "$zoo_check" "$folder" --no-check --no-speed --save
    "$python" "$root/tests/zoo/load_back.py" "$folder"
    ;;
  export_model) "$python" "$root/tests/zoo/export_model_test.py" ;;
  *)
    echo "small_zoo.sh: there is no test $test" >&2
    exit 2
    ;;
esac
