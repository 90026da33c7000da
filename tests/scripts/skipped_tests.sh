#!/usr/bin/env bash
# The end of `make test` names every test that was skipped, with its reason, and fails if one has none. Makes a project of
# tests in a folder for temporary files, runs ctest on it as the Makefile does, and looks at what is printed.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
if ! command -v python3 >/dev/null; then
  echo 'NOT TESTED: scripts/skipped-tests. There is no python3; scripts/install-deps docs installs it'
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  printf '%s\n' "$1" >&2
  exit 1
}

# expect TEXT: in what was printed last.
expect() { grep -qF -- "$1" "$work/out" || fail "expected '$1' in: $(cat "$work/out")"; }

# summary EXIT_CODE: of the tests in CTestTestfile.cmake.
summary() {
  local status=0
  (cd "$work" && ctest --output-junit "$work/tests.xml" >/dev/null) || true
  "$root/scripts/skipped-tests" "$work/tests.xml" >"$work/out" || status=$?
  [[ $status == "$1" ]] || fail "ended with $status, expected $1: $(cat "$work/out")"
}

cat >"$work/CTestTestfile.cmake" <<'TESTS'
add_test(passes "true")
add_test(fails "false")
add_test(no.mpirun "echo" "NOT TESTED: <Open MPI> & its kin; install it")
set_tests_properties(no.mpirun PROPERTIES SKIP_REGULAR_EXPRESSION "NOT TESTED")
add_test(Google.Test "printf" "Running main() from gtest_main.cc\n[ RUN      ] Google.Test\n/a/test.cpp:12: Skipped\nthis libtorch has no oneDNN\n\n[  SKIPPED ] Google.Test (0 ms)\n")
set_tests_properties(Google.Test PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED")
TESTS
summary 0
expect '2 of 4 tests skipped:'
expect '  no.mpirun: NOT TESTED: <Open MPI> & its kin; install it'
expect '  Google.Test: this libtorch has no oneDNN'

printf 'add_test(silent "true")\nset_tests_properties(silent PROPERTIES SKIP_RETURN_CODE 0)\n' >>"$work/CTestTestfile.cmake"
summary 1
expect '  silent: NO REASON GIVEN'

printf 'add_test(passes "true")\n' >"$work/CTestTestfile.cmake"
summary 0
expect '0 of 1 tests skipped'

printf 'add_test(asleep "true")\nset_tests_properties(asleep PROPERTIES DISABLED TRUE)\n' >>"$work/CTestTestfile.cmake"
summary 1
expect '1 disabled, which no test may be: asleep'

# And what the tests need is installed by the command that README names.
command -v make >/dev/null || exit 0
make --dry-run --directory "$root" DEPS=yes test >"$work/out"
expect 'scripts/install-deps processes'
expect 'scripts/skipped-tests'
