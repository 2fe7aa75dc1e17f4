#!/usr/bin/env bash
# The fast check. It writes nothing into the tree.
set -euo pipefail
cd "$(dirname "$0")/.."

unformatted=$(git ls-files '*.go' | xargs gofmt -l)
if [ -n "$unformatted" ]; then
	printf 'gofmt would change:\n%s\n' "$unformatted"
	exit 1
fi
go vet ./...
go build ./...
go test -short ./...
