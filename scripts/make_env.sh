#!/bin/sh
# Write .env with fresh random secrets for docker-compose.yml. Never overwrites one: what it encrypts must stay readable.
set -eu
cd "$(dirname "$0")/.."
if [ -e .env ]; then
    echo ".env exists already; it holds the keys of the stored secrets, so it is left as it is" >&2
    exit 1
fi
random() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
umask 077
cat > .env <<END
FAULTSENSE_POSTGRES_PASSWORD=$(random 24)
FAULTSENSE_REDIS_PASSWORD=$(random 24)
FAULTSENSE_SECRET_KEY=$(head -c 32 /dev/urandom | base64 | tr '+/' '-_')
END
echo "wrote .env; keep a copy of FAULTSENSE_SECRET_KEY in a safe place: without it stored tokens cannot be read"
