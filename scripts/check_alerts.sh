#!/usr/bin/env bash
# Check and test the alert rules with promtool: the installed one, or Debian's, unpacked into the cache folder.
set -euo pipefail
cd "$(dirname "$0")/.."
CACHE="${FAULTSENSE_CI_CACHE:-$HOME/.cache/faultsense}/prometheus"
PROMTOOL="$(command -v promtool || true)"
if [ -z "$PROMTOOL" ]; then
    PROMTOOL="$CACHE/usr/bin/promtool"
    if [ ! -x "$PROMTOOL" ]; then
        command -v apt-get > /dev/null || { echo "promtool is needed: install Prometheus" >&2; exit 1; }
        rm -rf "$CACHE" && mkdir -p "$CACHE" && cd "$CACHE"
        apt-get download --quiet prometheus || { apt-get update --quiet && apt-get download --quiet prometheus; }
        dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb
        cd - > /dev/null
    fi
fi
cd deploy/prometheus
"$PROMTOOL" check config prometheus.yml
"$PROMTOOL" test rules alerts_test.yml
