#!/usr/bin/env bash
# pythons.sh VERSION REQUIREMENTS [pytest's arguments...]: runs tests of the installed Python package in an environment of
# its own below build/pythons, with that version of Python and the packages that a lock file names, and no others. If
# there is no such Python, and it cannot be installed, it says so, and is done.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 lock=$2
shift 2
uv=$PWD/.venv/bin/uv
export UV_SYSTEM_CERTS=1 UV_HTTP_TIMEOUT=300

. tests/interpreter.sh
if ! python=$(interpreter "$version"); then
  echo "skipped: Python $version is not on this machine and cannot be installed"
  exit 0
fi
name=$(basename "$lock" .txt)-$version
folder=build/pythons/$name
if [ ! -e "$folder/.installed" ] || [ "$lock" -nt "$folder/.installed" ]; then
  rm -rf "$folder"
  "$uv" venv --quiet --python "$python" "$folder"
  "$uv" pip install --quiet --python "$folder/bin/python" --require-hashes --only-binary :all: -r "$lock"
  touch "$folder/.installed"
fi
"$uv" pip install --quiet --python "$folder/bin/python" --no-deps --no-index --reinstall build/wheel/bowstring-*.whl
if "$folder/bin/python" -c 'import pandas' 2>/dev/null; then
  echo "pandas is installed in $folder: the package is tested without it" >&2
  exit 1
fi
echo "Python $version, $("$uv" pip list --quiet --python "$folder/bin/python" --format freeze 2>/dev/null | grep -E '^(numpy|polars|pyarrow)==' | tr '\n' ' ')"
exec env PYTHONDONTWRITEBYTECODE=1 "$folder/bin/python" -m pytest -q -p no:cacheprovider "$@"
