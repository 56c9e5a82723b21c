#!/usr/bin/env bash
# extras.sh lowest|newest EXTRA...: installs the Python package with each extra alone, and then with all of them, in an
# environment of its own, and runs the tests of these extras. lowest takes the lowest version of each dependency that
# python/pyproject.toml allows, newest the newest that the index has. An environment is removed when its tests have
# ended: several of them with torch take more room than a small disk has.
set -euo pipefail
cd "$(dirname "$0")/.."
which=$1
shift
uv=$PWD/.venv/bin/uv
export UV_SYSTEM_CERTS=1 UV_HTTP_TIMEOUT=300
# Lowest versions have wheels for the oldest Python alone.
case $which in
lowest) resolution=lowest-direct versions="3.10 3.11" ;;
newest) resolution=highest versions="3.13 3.12 3.11" ;;
*) sed -n '2,5s/^# //p' "$0" >&2 && exit 2 ;;
esac

. tests/interpreter.sh
for version in $versions; do
  if python=$(interpreter "$version"); then
    break
  fi
done
if [ -z "$python" ]; then
  echo "skipped: none of Python $versions is on this machine, and none can be installed"
  exit 0
fi

tried() { # tried EXTRA,...
  local extras=$1 folder=build/extras/$which-${1//,/-} wheel
  wheel=$(echo build/wheel/bowstring-*.whl)
  rm -rf "$folder"
  "$uv" venv --quiet --python "$python" "$folder" || return 1
  # Of a wheel with extras uv would take all dependencies for indirect ones, and the newest of each.
  "$uv" pip install --quiet --python "$folder/bin/python" --resolution "$resolution" --only-binary :all: \
    -r python/pyproject.toml $(printf -- '--extra %s ' ${extras//,/ }) -r python/requirements/lowest.in &&
    "$uv" pip install --quiet --python "$folder/bin/python" --no-deps --no-index "$wheel" || return 1
  echo "== $which, $extras, Python $version: $("$uv" pip list --quiet --python "$folder/bin/python" --format freeze |
    grep -iE '^(numpy|pyarrow|torch|torchdata|ray|grain|polars|sqlglot|tokenizers|ipython|nvidia-dali-cuda120)==' | tr '\n' ' ')"
  local status=0
  BOWSTRING_EXTRAS=$extras PYTHONDONTWRITEBYTECODE=1 "$folder/bin/python" -m pytest -q -p no:cacheprovider \
    tests/python/test_extras.py || status=$?
  rm -rf "$folder"
  return "$status"
}

failed=
for extra in "$@"; do
  tried "$extra" || failed="$failed $extra"
done
if [ $# -gt 1 ]; then
  tried "$(IFS=, && echo "$*")" || failed="$failed together"
fi
[ -z "$failed" ] || { echo "failed:$failed" >&2 && exit 1; }
