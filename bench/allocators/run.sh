#!/usr/bin/env bash
# Runs one workload on one allocator and prints its results, one JSON object a line.
#   run.sh PEER WORKLOAD [--seed NUMBER] [--quick]
#   run.sh build ours|bfc|malloc      compiles only, and prints the program's path
# PEER: ours, bfc (its regions anywhere), bfc-virtual (one after another), bfc-fixed
# (one region), glibc, mimalloc, jemalloc, tcmalloc.
# Programs go to BUILD and are compiled again when a source is newer. TENSORFLOW is the
# folder of the installed tensorflow package; without it, PYTHON is asked. CXX and
# CXXFLAGS may be set.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
native=$here/../../_native
build=${BUILD:-${TMPDIR:-/tmp}/memcfg-bench-$(id -u)-$(cksum <<<"$here" | cut -d' ' -f1)}
flags="-std=c++17 -O2 -g -DNDEBUG -Wall -Wextra -Wpedantic -Wconversion ${CXXFLAGS:-}"

find_tensorflow() {
  echo "${TENSORFLOW:-$("${PYTHON:-python3}" -c '
import importlib.util
found = importlib.util.find_spec("tensorflow")
print(found.submodule_search_locations[0] if found else "")')}"
}

objects() { # prints the native core's object files, compiled if need be
  # What runs networks is not needed. A change of any header compiles everything again.
  local source object stale=()
  mkdir -p "$build/core"
  for source in "$native"/src/*.cpp; do
    case "$(basename "$source")" in kernel.cpp | onednn.cpp | program.cpp) continue ;; esac
    object=$build/core/$(basename "$source" .cpp).o
    echo "$object"
    if [ ! -e "$object" ] || [ "$source" -nt "$object" ] || [ -n "$(find "$native" \
      -newer "$object" -name '*.hpp' -print -quit)" ]; then
      rm -f "$object"
      stale+=("$source" "$object")
    fi
  done
  [ "${#stale[@]}" -eq 0 ] || printf '%s\n' "${stale[@]}" |
    CXX=${CXX:-g++} FLAGS=$flags xargs -n 2 -P "$(nproc)" \
      bash -c '$CXX $FLAGS -c "$0" -o "$1"' >&2
}

compile() { # ours | bfc | malloc; prints the program's path
  local program=$build/$1 core=() libraries=(-ldl -pthread) package
  mkdir -p "$build"
  case "$1" in
    ours)
      flags="$flags -Wno-unknown-pragmas -I$native/include -I$native/src"
      mapfile -t core < <(objects)
      ;;
    bfc)
      package=$(find_tensorflow)
      [ -n "$package" ] || { echo "skipped: pip install tensorflow-cpu" >&2; exit 3; }
      flags="$flags -isystem $package/include"
      libraries+=("-L$package" "-Wl,-rpath,$package" -l:libtensorflow_framework.so.2)
      ;;
    malloc) ;;
    *) echo "no such program: $1" >&2; exit 2 ;;
  esac
  if [ ! -x "$program" ] || [ -n "$(find "$here" "${core[@]}" -newer "$program" \
    -name '*.[cho]*' -print -quit)" ]; then
    # shellcheck disable=SC2086
    ${CXX:-g++} $flags "$here/$1.cpp" "${core[@]}" -o "$program" "${libraries[@]}" >&2
  fi
  echo "$program"
}

preload() { # Debian's file, Debian's package; prints the file's path
  local file
  for file in /usr/lib/*/"$1" /usr/lib/"$1"; do
    if [ -e "$file" ]; then echo "$file"; return; fi
  done
  echo "skipped: $1 is missing; apt-get install $2" >&2
  exit 3
}

[ $# -ge 2 ] || { sed -n '2,10s/^# //p' "$0" >&2; exit 2; }
peer=$1
shift
export TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 # bfc: results, not warnings
case "$peer" in
  build) compile "$1" ;;
  ours) program=$(compile ours); exec "$program" "$@" ;;
  bfc) program=$(compile bfc); exec "$program" "$@" --variant growth ;;
  bfc-virtual) program=$(compile bfc); exec "$program" "$@" --variant virtual ;;
  bfc-fixed) program=$(compile bfc); exec "$program" "$@" --variant fixed ;;
  glibc) program=$(compile malloc); exec "$program" "$@" ;;
  mimalloc) library=$(preload libmimalloc.so.2 libmimalloc2.0) ;;
  jemalloc) library=$(preload libjemalloc.so.2 libjemalloc2) ;;
  tcmalloc) library=$(preload libtcmalloc_minimal.so.4 libtcmalloc-minimal4) ;;
  *) echo "no such peer: $peer" >&2; exit 2 ;;
esac
if [ -n "${library:-}" ]; then
  program=$(compile malloc)
  LD_PRELOAD=$library exec "$program" "$@"
fi
