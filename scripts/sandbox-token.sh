#!/bin/sh
# Writes SANDBOXD_TOKEN, the secret between the host and who uses it, to .env beside the
# compose file. Once: another one would cut off everything that the host holds.
set -eu
cd "$(dirname "$0")/.."
file=${ENV_FILE:-.env}
if [ -f "$file" ] && grep -q '^SANDBOXD_TOKEN=..*' "$file"; then
	echo "$file has a SANDBOXD_TOKEN; it is left as it is"
	exit 0
fi
umask 077
token=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
[ ${#token} = 64 ] || { echo "sandbox-token: the kernel gave no randomness" >&2; exit 1; }
touch "$file"
chmod 600 "$file"
# An empty line of it, as copied from an example, is filled in.
{ grep -v '^SANDBOXD_TOKEN=$' "$file" || true; echo "SANDBOXD_TOKEN=$token"; } >"$file.new"
mv "$file.new" "$file"
echo "$file has a new SANDBOXD_TOKEN"
