# Sourced by pythons.sh and extras.sh, which set uv: interpreter VERSION prints the path of that Python. It fails if there is
# none on this machine, and none can be installed.

# uv takes the first python3.X on the path for the one there is, also a shim of pyenv that leads nowhere.
interpreter() {
  local found version=$1
  for found in "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python "$(command -v "python$version" || true)"; do
    if [ -x "$found" ] && "$found" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
      echo "$found"
      return
    fi
  done
  UV_HTTP_TIMEOUT=20 timeout 120 "$uv" python install --quiet --no-bin "$version" 2>/dev/null &&
    "$uv" python find --managed-python "$version" 2>/dev/null
}
