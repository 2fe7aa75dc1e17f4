#!/usr/bin/env bash
# Everything: set-up, build, all tests, fuzzing for a bounded time, and that the
# tree is as clean as before. The settings:
#   FUZZTIME              of each fuzz target, default 20s in CI and 5s elsewhere
#   SANDBOXD_TEST_EXPECT  capabilities that must be there, default all as root
set -euo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS

scripts/install-deps.sh
scripts/install-deps.sh --v2
SANDBOXD_TEST_UML=$(scripts/install-deps.sh --print-uml)
export SANDBOXD_TEST_UML

before=$(git status --porcelain)

scratch=$(mktemp -d)
trap 'scripts/engine.sh stop "$scratch/engine"; rm -rf "$scratch"' EXIT
SANDBOXD_TEST_DOCKER=
[ "$(id -u)" != 0 ] || SANDBOXD_TEST_DOCKER=$(scripts/engine.sh start "$scratch/engine")
export SANDBOXD_TEST_DOCKER
export SANDBOXD_TEST_CAPS=$scratch/capabilities
: >"$SANDBOXD_TEST_CAPS"
if [ -z "${SANDBOXD_TEST_EXPECT+set}" ]; then
	SANDBOXD_TEST_EXPECT=
	if [ "$(id -u)" = 0 ]; then
		SANDBOXD_TEST_EXPECT="root mount process seccomp docker compose python-client"
		# gVisor needs a user namespace, which is forbidden inside a chroot; there the pool of
		# the docker driver does not find its way into containers either.
		! unshare --user true 2>/dev/null || SANDBOXD_TEST_EXPECT+=" runsc docker-pool"
		# A host that has the network for itself.
		! unshare --net ip link add out type veth peer name beyond 2>/dev/null || SANDBOXD_TEST_EXPECT+=" veth"
		# One cgroup version is what this machine has; version 2 also runs in the
		# user-mode kernel, which exists for x86_64.
		[ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] && SANDBOXD_TEST_EXPECT+=" cgroup2" || SANDBOXD_TEST_EXPECT+=" cgroup1"
		# So does an ordinary user.
		! setpriv --reuid=65534 --clear-groups unshare --user true 2>/dev/null || SANDBOXD_TEST_EXPECT+=" rootless"
		[ "$(uname -m)" != x86_64 ] || SANDBOXD_TEST_EXPECT+=" uml"
	fi
fi
# And each row of the compatibility matrix of the drivers that are there.
if [[ " $SANDBOXD_TEST_EXPECT " == *" python-client "* ]]; then
	SANDBOXD_TEST_EXPECT+=$(awk -v expect=" $SANDBOXD_TEST_EXPECT " '!/^#/ && index(expect, " " $1 " ") {
		for (i = 3; i <= NF; i++) printf " ws-%s/%s/%s", $i, $1, $2 }' test/sessions/testdata/rows)
fi
export SANDBOXD_TEST_EXPECT
echo "capabilities expected: ${SANDBOXD_TEST_EXPECT:-none}"

echo "== build"
make --no-print-directory build

echo "== vet"
go vet ./...

echo "== test"
status=0
# One package at a time: suites count mounts, cgroups and processes before and after.
go test -p 1 -count=1 -timeout 20m -json ./... | scripts/testsum.py "$scratch/count" || status=1

# The life of a sandbox against its model. In memory where there is room for it:
# ten thousand sequences make some hundred thousand directories.
echo "== model, 10000 sequences"
model_dir=$scratch
[ ! -w /dev/shm ] || model_dir=/dev/shm
TMPDIR=$model_dir go test -count=1 -timeout 20m -run '^TestModel$' -v ./internal/host -rapid.checks=10000 -rapid.nofailfile || status=1

echo "== fuzz, ${FUZZTIME:=$([ "${CI:-}" = true ] && echo 10s || echo 5s)} each"
fuzzed=0
for package in $(go list ./...); do
	# A package without tests lists nothing; one that does not compile has failed above.
	for target in $(go test -list '^Fuzz' "$package" 2>/dev/null | grep '^Fuzz' || true); do
		if ! go test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$package" 2>&1 | tee "$scratch/fuzz"; then
			# The tool may take the end of its own time for a failure (go.dev/issue/75804). One
			# that was found is written down, and any other has other words.
			if ! grep -qx '    context deadline exceeded' "$scratch/fuzz" || grep -q 'Failing input\|panic\|hung or terminated' "$scratch/fuzz"; then
				status=1
			fi
		fi
		fuzzed=$((fuzzed + 1))
	done
done

after=$(git status --porcelain)
if [ "$before" != "$after" ]; then
	printf 'the tests left the tree changed:\n%s\n' "$after"
	status=1
fi

# A test that is not there any more does not say what it lacks.
for capability in $SANDBOXD_TEST_EXPECT; do
	if ! grep -qxF "$capability" "$SANDBOXD_TEST_CAPS"; then
		echo "capability $capability is expected, and nothing that ran has it"
		status=1
	fi
done

echo "capabilities that ran: $(sort -u "$SANDBOXD_TEST_CAPS" | paste -sd' ')"
echo "fuzz targets: $fuzzed, $FUZZTIME each; time: $((SECONDS - began)) s"
cat "$scratch/count"
exit "$status"
