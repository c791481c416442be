# Targets for people and for .ci/run; `make help` lists them.

# sudo may drop Go from PATH.
GO = $(or $(shell command -v go),/usr/local/go/bin/go)
TOOL = $(GO) tool -modfile=tools/go.mod
export CGO_ENABLED = 0

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: build test test-unit test-root test-vm lint demo bench web man deps clean help

build: ## build bin/zone, one static program
	$(GO) build -trimpath -o bin/zone ./cmd/zone

test: deps lint ## everything: lint, tests of the packages, as root also those of the whole; installs what they need
	@GO=$(GO) tools/test.sh all

test-unit: ## the tests of the packages only
	@GO=$(GO) tools/test.sh unit

test-root: deps ## the tests of the whole, on this machine, as root
	@GO=$(GO) tools/test.sh root

test-vm: deps ## the tests of cgroup v2 and systemd, in an emulated machine, as root; made on first use, then kept
	@GO=$(GO) test/vm/run.sh

lint: ## go vet, gofumpt, staticcheck, and the shell's own check of the scripts
	$(GO) vet ./...
	@unformatted=$$($(TOOL) gofumpt -l .) && if [ -n "$$unformatted" ]; then \
		echo "not formatted by gofumpt:"; echo "$$unformatted"; exit 1; fi
	$(TOOL) staticcheck ./...
	@for script in .ci/run tools/*.sh demo/*.sh test/vm/*.sh; do bash -n $$script || exit 1; done

demo: deps build ## eight real Debian zones: cloned, booted, watched, patched, one rolled back; installs what it needs
	@ZONE=bin/zone demo/demo.sh

bench: ## the benchmarks of the packages; some need root
	$(GO) test -run '^$$' -bench . ./...

web: ## the dashboard: has no source in this version
	@test ! -e web && echo "web: the dashboard has no source in this version; nothing to build"

man: build ## write man pages and the reference under docs/reference
	rm -rf docs/reference
	env -u NO_COLOR bin/zone generate-docs docs/reference

deps: ## install with apt-get what zone and its tests need and this machine lacks
	@tools/deps.sh

clean: ## remove what was built
	rm -rf bin

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
