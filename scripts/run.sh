#!/bin/sh
# Starts a server on ./run/data, runs the sales example against it once, and stays
# up until Ctrl-C, which stops every sandbox. `make run` builds first.
set -eu
cd "$(dirname "$0")/.."

# Tests choose their own; so can you: ADDRESS=127.0.0.1:9191 make run
address=${ADDRESS:-127.0.0.1:9090}
run=${RUN_DIR:-run}
sandboxd=${SANDBOXD:-bin/sandboxd}
url=http://$address
mkdir -p "$run"
unset SANDBOXD SANDBOXD_URL SANDBOXD_TOKEN SANDBOXD_DATA
flags="--data $run/data"
if [ "$address" != 127.0.0.1:9090 ]; then flags="$flags --url $url"; fi

if [ -t 1 ]; then b=$(printf '\033[1m') n=$(printf '\033[0m'); else b='' n=''; fi

"$sandboxd" serve --data "$run/data" --listen "$address" --stop-on-interrupt >"$run/serve.out" 2>"$run/serve.log" &
server=$!
# The terminal's Ctrl-C reaches the server by itself; a plain SIGINT or SIGTERM to
# this script is passed on. Either way the server stops its sandboxes first.
finish() {
	trap '' INT TERM HUP
	kill -INT "$server" 2>/dev/null || true
	wait "$server" || true
	echo
	echo "stopped; nothing is left running"
	exit "${1:-0}"
}
trap 'finish 0' INT TERM HUP

tries=0
# Asked with our key: another server on this address does not count.
until "$sandboxd" ps --data "$run/data" --url "$url" >/dev/null 2>&1; do
	if ! kill -0 "$server" 2>/dev/null || [ "$tries" -ge 200 ]; then
		echo "the server did not start:" >&2
		grep -hE '^(sandboxd|hint):' "$run/serve.log" >&2 || tail -n 5 "$run/serve.log" >&2
		kill -INT "$server" 2>/dev/null || true
		exit 1
	fi
	tries=$((tries + 1))
	sleep 0.1
done

rm -rf "$run/sales"
cp -R examples/sales "$run/sales"
echo "${b}\$ bin/sandboxd run --copy $run/sales -- python3 analyse.py${n}"
"$sandboxd" run --data "$run/data" --url "$url" --copy "$run/sales" -- python3 analyse.py </dev/null || finish 1

cat <<TEXT

${b}It made${n}
  $run/sales/chart.svg     $(wc -c <"$run"/sales/chart.svg) bytes, open it in a browser
  $run/sales/summary.json  $(wc -c <"$run"/sales/summary.json) bytes

${b}The server${n}
  address  $url
  token    $run/data/token
  log      $run/serve.log

${b}Try${n}
  curl -sH "Authorization: Bearer \$(cat $run/data/token)" -d '{"key":"demo"}' $url/v1/sandboxes
  bin/sandboxd exec $flags demo -- uname -a

Ctrl-C stops it and every sandbox.
TEXT
wait "$server" || true
echo "the server ended; see $run/serve.log" >&2
exit 1
