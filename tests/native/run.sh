#!/usr/bin/env bash
# Builds every tests/native/test_*.cpp with the whole native core under sanitizers and
# runs it.   tests/native/run.sh [asan|tsan]     (both when none is named)
# CXX, CXXFLAGS and JOBS (how many compilers at once) may be set.
set -euo pipefail
cd "$(dirname "$0")/../.."

case "${1:-both}" in
  both) variants="asan tsan" ;;
  asan | tsan) variants="$1" ;;
  *) echo "usage: $0 [asan|tsan]" >&2; exit 2 ;;
esac

cxx=${CXX:-g++}
if command -v ccache >/dev/null; then cxx="ccache $cxx"; fi
# -Wno-unknown-pragmas: built without OpenMP, whose barriers ThreadSanitizer cannot see.
flags="-std=c++17 -g -O1 -fno-omit-frame-pointer -Wall -Wextra -Wpedantic -Wconversion
  -Werror -Wno-unknown-pragmas -I_native/include -I_native/src -Itests/native
  ${CXXFLAGS:-}"
asan="-fsanitize=address,undefined -fno-sanitize-recover=all"
tsan="-fsanitize=thread"
export ASAN_OPTIONS=allocator_may_return_null=1:${ASAN_OPTIONS:-}
export TSAN_OPTIONS=allocator_may_return_null=1:${TSAN_OPTIONS:-}

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
passed=0
failed=0

compile() { # variant sanitizer-flags
  mkdir -p "$build/$1/tests"
  find _native/src -name '*.cpp' | sort | while read -r source; do
    printf '%s %s\n' "$source" "$build/$1/$(tr / _ <<<"$source").o"
  done >"$build/$1/list"
  for source in tests/native/test_*.cpp; do
    printf '%s %s\n' "$source" "$build/$1/tests/$(basename "$source" .cpp).o"
  done >>"$build/$1/list"
  # shellcheck disable=SC2016,SC2086
  CXX=$cxx FLAGS="$flags $2" xargs -a "$build/$1/list" -P "${JOBS:-$(nproc)}" -L 1 \
    bash -c '$CXX $FLAGS -c "$0" -o "$1"'
}

run() { # variant sanitizer-flags object
  local program="${3%.o}" closing status=0
  # shellcheck disable=SC2086
  $cxx $2 "$3" "$build/$1"/*.o -ldl -lpthread -o "$program"
  "$program" >"$program.log" 2>&1 || status=$?
  closing=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$program.log" | tail -1 || true)
  read -r ok _ bad _ <<<"${closing:-0 passed, 0 failed}"
  if [ "$status" -ne 0 ] || [ -z "$closing" ]; then
    cat "$program.log"
    [ "$bad" -gt 0 ] || bad=1 # it ended badly after its tests, or before
  fi
  echo "$1 $(basename "$program"): $ok passed, $bad failed"
  passed=$((passed + ok))
  failed=$((failed + bad))
}

for variant in $variants; do
  compile "$variant" "${!variant}" || { echo "0 passed, 1 failed"; exit 1; }
  for object in "$build/$variant"/tests/*.o; do
    run "$variant" "${!variant}" "$object"
  done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
