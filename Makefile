# `make` lists what there is. Everything that a rule leaves is ignored by git.

INIT    := internal/driver/initbin/init
PROBER  := internal/driver/initbin/prober
VERSION := $(shell cat VERSION)
VARIABLE := sandboxd/internal/app.Version

.DEFAULT_GOAL := help
.PHONY: help build run image sandbox-token sandbox-runtimes check test test-v2 bench bench-peers workbench arm64 levels lint clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

build: ## build bin/sandboxd, static, with the init and the prober inside
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(INIT) ./cmd/init
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(PROBER) ./internal/isolate/prober
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X $(VARIABLE)=$(VERSION)" -o bin/sandboxd ./cmd/sandboxd

run: build ## start a server, run the example against it, stay up until Ctrl-C
	@scripts/run.sh

image: build ## the host as a container image, sandboxd:<VERSION>; see docs/host.md
	@scripts/image.sh

sandbox-token: ## write the secret of the host to .env, once
	@scripts/sandbox-token.sh

check: build ## the fast check: format, vet, build, unit tests; changes nothing
	@scripts/check.sh

test: ## everything, with its own set-up; what CI runs
	@scripts/test.sh

test-v2: build ## the process driver on cgroup v2, in a user-mode kernel
	@scripts/install-deps.sh --v2
	SANDBOXD_TEST_UML=$$(scripts/install-deps.sh --print-uml) go test -count=1 -timeout 10m ./test/v2

bench: build ## measure bin/sandboxd against the machine; samples go to bench/results
	go run ./bench

bench-peers: build ## measure the host beside the service whose wire it speaks; writes docs/bench.md
	scripts/bench-peers.py --write

workbench: build ## build the shipped runtimes and use each of their tools; writes docs/runtimes.md
	scripts/workbench.py --write

arm64: build ## ask apt, pip and npm for all that the shipped runtimes name, for arm64
	scripts/arm64.py

sandbox-runtimes: build ## write the shipped runtimes into the compose files that hold a copy
	@for file in $$(git grep -l '^ *SANDBOXD_RUNTIMES:' -- '*.yml' '*.yaml'); do bin/sandboxd runtimes print --catalogue shipped --into "$$file"; done

levels: build ## write docs/security-levels.md: what holds a sandbox in on this machine
	bin/sandboxd selftest --markdown >bin/levels.md
	mv bin/levels.md docs/security-levels.md

lint: ## golangci-lint, with the version of tools/go.mod
	go tool -modfile=tools/go.mod golangci-lint run ./...

clean: ## remove what the rules above made
	rm -rf bin run $(INIT) $(PROBER)
