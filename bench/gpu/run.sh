#!/bin/bash
# Runs on a machine with a GPU, from the folder that bundle.py writes: run.sh --out DIR [--minutes 8] [--dry]
# PYTHON names another interpreter than python3, such as that of an environment that has torch.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
# Not TMPDIR, where loaders make sockets, whose paths may have 107 bytes. If one has more, batches are lost.
work=$(mktemp -d -t bowstring-gpu-XXXXXX)
trap 'rm -rf "$work"' EXIT
# A wheel is a zip file, and these have pure Python and static programs: without pip, no environment is changed.
"$python" -m zipfile -e "$here"/bowstring-*.whl "$work/installed"
mkdir "$work/bin"
mv "$work"/installed/bowstring-*.data/scripts/bowstring "$work/bin/"
"$python" -c 'import gzip, shutil, sys; shutil.copyfileobj(gzip.open(sys.argv[1]), open(sys.argv[2], "wb"))' \
  "$here/bowstring-lab.gz" "$work/bin/bowstring-lab"
chmod +x "$work"/bin/*
export PYTHONPATH="$work/installed:$here:$here/site${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
"$python" -m gpu.main --programs "$work/bin" --photos "$here/photos" --work "$work" --spent "$SECONDS" "$@"
