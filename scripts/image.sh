#!/bin/sh
# Builds the image of the host from bin/sandboxd and this machine's certificates.
# `make image` builds the binary first.
set -eu
cd "$(dirname "$0")/.."
image=sandboxd:$(cat VERSION)
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp deploy/Dockerfile "${SANDBOXD:-bin/sandboxd}" "$context/"
for bundle in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem; do
	[ ! -f "$bundle" ] || { cp "$bundle" "$context/ca-certificates.crt"; break; }
done
[ -f "$context/ca-certificates.crt" ] || { echo "image.sh: this machine has no bundle of certificates; install ca-certificates" >&2; exit 1; }
docker build --quiet --tag "$image" "$context" >/dev/null
echo "$image"
