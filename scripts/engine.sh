#!/usr/bin/env bash
# A container engine of the tests' own: its data, socket and processes are below one
# directory, it makes no network and no firewall rule, and it leaves the machine's own
# engine alone.
#   engine.sh start DIR   starts it with runc and runsc and its images; prints its
#                         address, or nothing where there is no engine to start
#   engine.sh stop DIR    ends it and removes DIR
set -euo pipefail

cache=${SANDBOXD_TEST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sandboxd-test}

say() { printf 'set-up: %s\n' "$*" >&2; }

# archive NAME [PACKAGES] makes what the image sandboxd-test/NAME is imported from, once:
# Debian's essential packages and those named, without what nobody reads.
archive() {
	local name=$1 packages=${2:-} suite archive
	# shellcheck disable=SC1091
	suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	archive=$cache/$name-$suite-$(dpkg --print-architecture).tar
	if [ ! -s "$archive" ]; then
		say "making the image $name of the tests ($suite)"
		mkdir -p "$cache"
		mmdebstrap --quiet --variant=essential ${packages:+--include="$packages"} --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
			--dpkgopt='path-exclude=/usr/share/locale/*' "$suite" "$cache/new-$$.tar" >&2
		mv "$cache/new-$$.tar" "$archive"
	fi
	echo "$archive"
}

# closed runs a program with the three standard streams and no other descriptor.
closed() (
	local fd
	for fd in /proc/self/fd/*; do
		fd=${fd##*/}
		[ "$fd" -le 2 ] || [ "$fd" = 255 ] || eval "exec $fd>&-" 2>/dev/null || true
	done
	exec "$@"
)

start() {
	local dir=$1 program pid address tries=0
	for program in dockerd docker mmdebstrap; do
		command -v "$program" >/dev/null || { say "no $program: the docker suites will not run"; return 0; }
	done
	mkdir -p "$dir"
	address=unix://$dir/docker.sock
	echo '{}' >"$dir/daemon.json"
	# gVisor puts itself into a user namespace, which not every kernel and place allows.
	if command -v runsc >/dev/null && unshare --user true 2>/dev/null; then
		# Without networks and cgroups: what they need of the machine is not everywhere.
		echo "{\"runtimes\":{\"runsc\":{\"path\":\"$(command -v runsc)\",\"runtimeArgs\":[\"--network=none\",\"--ignore-cgroups\"]}}}" >"$dir/daemon.json"
	fi
	# It outlives the caller and must hold nothing of the caller's, as a lock.
	closed setsid dockerd --config-file "$dir/daemon.json" --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" \
		-H "$address" --bridge=none --iptables=false --ip6tables=false >"$dir/log" 2>&1 </dev/null &
	pid=$!
	until docker -H "$address" version >/dev/null 2>&1; do
		if ! kill -0 "$pid" 2>/dev/null || [ "$tries" -ge 300 ]; then
			say "the engine did not start:"
			tail -n 5 "$dir/log" >&2
			return 0
		fi
		tries=$((tries + 1))
		sleep 0.1
	done
	docker -H "$address" import "$(archive base)" sandboxd-test/base:latest >/dev/null
	docker -H "$address" import "$(archive tools python3-pip,npm,ca-certificates)" sandboxd-test/tools:latest >/dev/null
	docker -H "$address" import "$(archive workshop apt,python3-pip,python3-venv,npm,ca-certificates)" sandboxd-test/workshop:latest >/dev/null
	echo "$address"
}

stop() {
	local dir=$1 pid tries=0 mounted
	pid=$(cat "$dir/pid" 2>/dev/null || true)
	if [ -n "$pid" ] && kill -TERM "$pid" 2>/dev/null; then
		while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 200 ]; do
			tries=$((tries + 1))
			sleep 0.1
		done
		kill -KILL "$pid" 2>/dev/null || true
	fi
	awk -v dir="$dir/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r mounted; do
		umount "$mounted" || true
	done
	rm -rf "$dir"
}

case "${1:-} ${2:+dir}" in
"start dir") start "$2" ;;
"stop dir") stop "$2" ;;
*) echo "usage: engine.sh start|stop DIR" >&2; exit 2 ;;
esac
