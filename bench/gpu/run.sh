#!/bin/bash
# Runs on a machine with a GPU, from the folder that bundle.py writes: run.sh --out DIR [--minutes 8] [--dry]
# PYTHON names another interpreter than python3, such as that of an environment that has torch.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
export TMPDIR=$(mktemp -d -t bowstring-gpu-XXXXXX)
trap 'rm -rf "$TMPDIR"' EXIT
# A wheel is a zip file, and these have pure Python and static programs: without pip, no environment is changed.
"$python" -m zipfile -e "$here"/bowstring-*.whl "$TMPDIR/installed"
mkdir "$TMPDIR/bin"
mv "$TMPDIR"/installed/bowstring-*.data/scripts/bowstring "$TMPDIR/bin/"
"$python" -c 'import gzip, shutil, sys; shutil.copyfileobj(gzip.open(sys.argv[1]), open(sys.argv[2], "wb"))' \
  "$here/bowstring-lab.gz" "$TMPDIR/bin/bowstring-lab"
chmod +x "$TMPDIR"/bin/*
export PYTHONPATH="$TMPDIR/installed:$here:$here/site${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
"$python" -m gpu.main --programs "$TMPDIR/bin" --photos "$here/photos" --work "$TMPDIR" --spent "$SECONDS" "$@"
