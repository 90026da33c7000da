#!/usr/bin/env bash
# An include that the list of folders forbids, or an internal name in gpipe::, makes scripts/check-includes fail and say
# which file, line and rule. Makes a tree of sources in a folder for temporary files, and breaks one rule after the other.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
if ! command -v python3 >/dev/null; then
  echo 'NOT TESTED: scripts/check-includes. There is no python3; scripts/install-deps docs installs it'
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  printf '%s\n' "$1" >&2
  exit 1
}

# check EXIT_CODE [TEXT...]: of the tree, with these texts in what is printed.
check() {
  local status=0 text
  "$root/scripts/check-includes" "$work/tree" >"$work/out" || status=$?
  [[ $status == "$1" ]] || fail "ended with $status, expected $1: $(cat "$work/out")"
  for text in "${@:2}"; do
    grep -qF -- "$text" "$work/out" || fail "expected '$text' in: $(cat "$work/out")"
  done
}

# write FILE LINE...: in the tree.
write() {
  mkdir -p "$(dirname "$work/tree/$1")"
  printf '%s\n' "${@:2}" >"$work/tree/$1"
}

sound_tree() {
  rm -rf "$work/tree"
  write scripts/layers.txt '# in order' 'gpipe plain' 'gpipe/text plain' 'gpipe/plan plain' 'gpipe/model torch' \
    'gpipe/gpipe.h torch'
  write scripts/public_headers.txt gpipe/gpipe.h gpipe/plan/plan.h gpipe/error.h
  write gpipe/error.h '#include <string>'
  write gpipe/text/utf8.h '#include "gpipe/error.h"'
  write gpipe/plan/plan.h '#include "gpipe/error.h"'
  write gpipe/plan/plan.cpp '#include "gpipe/plan/plan.h"' '' '#include "gpipe/text/utf8.h"'
  write gpipe/model/layer.h '#include <torch/torch.h>' '#include "gpipe/plan/plan.h"'
  write gpipe/gpipe.h '#include "gpipe/plan/plan.h"'
}

sound_tree
check 0 'ok'

write gpipe/plan/plan.cpp '#include "gpipe/plan/plan.h"' '' '#include "gpipe/model/layer.h"'
check 1 'gpipe/plan/plan.cpp:3: goes down: gpipe/model/layer.h, but gpipe/model stands below gpipe/plan' \
  'gpipe/plan/plan.cpp:3: cycle: gpipe/plan -> gpipe/model -> gpipe/plan'

# With an exception and its reason, it may; without a reason, or without the include, there is none.
echo 'except gpipe/plan/plan.cpp gpipe/model/layer.h  # for now' >>"$work/tree/scripts/layers.txt"
check 0 '1 exceptions, ok'
write gpipe/plan/plan.cpp '#include "gpipe/plan/plan.h"'
check 1 'scripts/layers.txt:7: gpipe/plan/plan.cpp does not include gpipe/model/layer.h, or may: remove the exception'

sound_tree
write gpipe/text/utf8.h '#include <ATen/ATen.h>'
check 1 'gpipe/text/utf8.h:1: torch: ATen/ATen.h in gpipe/text, which is built without torch'

sound_tree
write gpipe/plan/plan.h '#include "gpipe/error.h"' '#include "gpipe/text/utf8.h"'
check 1 'gpipe/plan/plan.h:2: public: gpipe/text/utf8.h is not in scripts/public_headers.txt'

sound_tree
write gpipe/gpipe.h '#include <gpipe/error.h>'
check 1 'scripts/public_headers.txt:2: gpipe/plan/plan.h is not public any more: remove it'

sound_tree
write gpipe/new/file.cpp '#include "gpipe/error.h"'
check 1 'gpipe/new/file.cpp:1: its folder is not in scripts/layers.txt'

# A header that is not installed has its names in gpipe::detail.
sound_tree
write gpipe/text/utf8.h '#include "gpipe/error.h"' 'namespace gpipe {'
check 1 'gpipe/text/utf8.h:2: internal: it is not installed, so its names belong into gpipe::detail'
write gpipe/text/utf8.h '#include "gpipe/error.h"' 'namespace gpipe' '{'
check 1 'gpipe/text/utf8.h:2: internal: '
write gpipe/text/utf8.h '#include "gpipe/error.h"' 'namespace gpipe::detail {'
write gpipe/plan/plan.h '#include "gpipe/error.h"' 'namespace gpipe {'
check 0 'ok'

# And the tree that this stands in is sound.
"$root/scripts/check-includes" >"$work/out" || fail "$(cat "$work/out")"
