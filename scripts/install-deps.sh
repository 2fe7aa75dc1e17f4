#!/usr/bin/env bash
# Brings what the tests need and the machine lacks, and says so. It installs only
# as root where apt-get exists; elsewhere it says what is missing, and the tests
# that need it skip by name.
#   install-deps.sh              the programs that tests run
#   install-deps.sh --v2         the user-mode kernel, unpacked into a cache, not installed
#   install-deps.sh --print-uml  where that kernel is; prints nothing if there is none
set -euo pipefail

cache=${SANDBOXD_TEST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sandboxd-test}
kernel=$cache/uml/usr/bin/linux.uml
updated=

say() { printf 'set-up: %s\n' "$*" >&2; }
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
update() {
	[ -n "$updated" ] || { say "updating the package lists"; apt-get update -qq >&2; updated=yes; }
}

programs() {
	local missing=() need
	# program:package, what runs it
	for need in git:git gcc:gcc python3:python3 curl:curl dockerd:docker.io iptables:iptables ip:iproute2 runsc:runsc mmdebstrap:mmdebstrap docker-compose:docker-compose; do
		command -v "${need%%:*}" >/dev/null || missing+=("${need##*:}")
	done
	python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
	[ ${#missing[@]} -gt 0 ] || return 0
	[ "${missing[*]}" != gcc ] || missing+=(libc6-dev)
	if ! can_install; then
		say "missing: ${missing[*]} (not root, or no apt-get: install them by hand)"
		return 0
	fi
	update
	say "installing ${missing[*]}"
	# At run level 1 a package starts none of its services: the tests start their own.
	RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2
}

user_mode_kernel() {
	[ ! -x "$kernel" ] && [ ! -x /usr/bin/linux.uml ] || return 0
	if [ "$(uname -m)" != x86_64 ] || ! can_install; then
		say "no user-mode kernel here (needs root, apt-get and x86_64): the cgroup v2 suite will not run"
		return 0
	fi
	update
	say "fetching the user-mode kernel into $cache (unpacked, not installed)"
	local tmp
	mkdir -p "$cache"
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' RETURN
	# apt drops its privileges for the download and must be able to write here.
	! id _apt >/dev/null 2>&1 || chown _apt "$tmp"
	(cd "$tmp" && apt-get download -qq user-mode-linux >&2)
	dpkg -x "$tmp"/*.deb "$tmp/root"
	rm -rf "$cache/uml"
	mv "$tmp/root" "$cache/uml"
}

case "${1:-}" in
"") programs ;;
--v2) user_mode_kernel ;;
--print-uml)
	for k in "$kernel" /usr/bin/linux.uml; do
		[ ! -x "$k" ] || { echo "$k"; break; }
	done
	;;
*) echo "install-deps.sh: unknown argument" >&2; exit 2 ;;
esac
