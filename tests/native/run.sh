#!/usr/bin/env bash
# Builds tests of tests/native, with what they need of the native core, under sanitizers,
# and runs them:
#   tests/native/run.sh                        all
#   tests/native/run.sh changed                those affected since all passed (passed.json)
#   tests/native/run.sh record                 all, and writes passed.json if they pass
#   tests/native/run.sh [asan|tsan] test_NAME.cpp...
# CXX, CXXFLAGS and JOBS (how many compilers, then tests, at once) may be set.
set -euo pipefail
cd "$(dirname "$0")/../.."

variants="asan tsan"
choice=all
case "${1:-}" in
  asan | tsan) variants="$1"; shift ;;
  changed | record) choice="$1"; shift ;;
esac
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
if [ "$choice" = record ]; then # now: what changes during the run has not passed
  python3 tests/native/select_tests.py digests >"$build/passed.json"
fi
files=$(python3 tests/native/select_tests.py "${choice/record/all}" "$@")
set -- $(grep -o 'test_[^/]*\.cpp$' <<<"$files" || true)
if [ $# -eq 0 ]; then
  echo "nothing has changed since all tests passed"
  echo "0 passed, 0 failed"
  exit
fi

cxx=${CXX:-g++}
if command -v ccache >/dev/null; then cxx="ccache $cxx"; fi
# Line tables are all that reports need of -g, and compiling takes longer than running:
# hence -O0. -Wno-unknown-pragmas: without OpenMP, whose barriers ThreadSanitizer cannot
# see.
flags="-std=c++17 -g1 -O0 -fno-omit-frame-pointer -Wall -Wextra -Wpedantic
  -Wconversion -Werror -Wno-unknown-pragmas -I_native/include -I_native/src
  -Itests/native ${CXXFLAGS:-}"
asan="-fsanitize=address,undefined -fno-sanitize-recover=all"
tsan="-fsanitize=thread"
export ASAN_OPTIONS=allocator_may_return_null=1:${ASAN_OPTIONS:-}
export TSAN_OPTIONS=allocator_may_return_null=1:${TSAN_OPTIONS:-}

export cxx flags asan tsan build

compile() { # variant source
  # shellcheck disable=SC2086
  $cxx $flags ${!1} -c "$2" -o "$build/$1/${2//\//_}.o"
}

# One object, that no test has to link sixty; a shared library would be initialized, and
# would hear of forks, before the program that it is linked to.
link_core() { # variant
  $cxx -x c++ -c /dev/null -o "$build/$1/_native_.o" # tests of headers need no other
  # shellcheck disable=SC2086
  $cxx -r -nostdlib "$build/$1"/_native_*.o -o "$build/$1/core.o"
}

run_test() { # variant source
  local program="$build/$1/${2%.cpp}" closing status=0
  # shellcheck disable=SC2086
  {
    $cxx ${!1} "$build/$1/tests_native_$2.o" "$build/$1/core.o" -ldl \
      -lpthread -o "$program" && timeout 900 "$program"
  } >"$program.log" 2>&1 || status=$?
  closing=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$program.log" | tail -1 || true)
  read -r ok _ bad _ <<<"${closing:-0 passed, 0 failed}"
  if [ "$status" -ne 0 ] || [ -z "$closing" ]; then
    cat "$program.log"
    [ "$bad" -gt 0 ] || bad=1 # it ended badly after its tests, or before
  fi
  echo "$1 ${2%.cpp}: $ok passed, $bad failed"
}

at_once() { # function: called for every line of standard input
  export -f "${1?}"
  xargs -P "${JOBS:-$(nproc)}" -L 1 bash -euo pipefail -c "$1 \"\$@\"" "$1"
}

each() { # files...: every variant that they need, the largest files first
  local variant
  for file in $(ls -S "$@"); do
    for variant in $variants; do
      if [ "$variant" = asan ] || has_threads "$file"; then echo "$variant $file"; fi
    done
  done
}

has_threads() { # file: of the core, or a test with threads, whose races are looked for
  case $1 in _native/*) return 0 ;; esac
  grep -qE 'thread|Lane|fork|conformance' "$1"
}

threaded=()
for test in "$@"; do
  if has_threads "tests/native/$test"; then
    threaded+=("$test")
  elif [ "$variants" = tsan ]; then
    echo "$test has no threads: not run under the thread sanitizer"
  fi
done
if [ ${#threaded[@]} -eq 0 ]; then # without them nothing of the core is needed, either
  variants=${variants%tsan}
  [ -n "$variants" ] || { echo "0 passed, 0 failed"; exit; }
fi
for variant in $variants; do mkdir "$build/$variant"; done
# Both must do: without its core no program can be linked.
each $files | at_once compile &&
  printf '%s\n' $variants | at_once link_core ||
  { echo "0 passed, 1 failed"; exit 1; }
(cd tests/native && each "$@") | at_once run_test | tee "$build/report" || ended=$?
awk '/^[at]san .*: [0-9]+ passed, [0-9]+ failed$/ { ok += $3; bad += $5; programs++ }
  END { print ok + 0 " passed, " bad + 0 " failed"; exit bad > 0 }' "$build/report"
[ -z "${ended:-}" ] || { echo "some tests have no result"; exit 1; }
[ "$choice" != record ] || mv "$build/passed.json" tests/native/passed.json
