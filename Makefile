# Each verb is one script; read it for what it does. FLOWKEEP_CACHE (default /var/cache/flowkeep) holds what is built once.
.PHONY: try try-down docs krew images release test-full screenshots cyclonus help demo demo-down demo-fleet build test lint unit fuzz system test-kernel conformance soak bench flakes generate preflight

help: ## what there is
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

try: ## Flowkeep on two nodes of network namespaces, without Kubernetes, with a small shop; stays up (DIR=…: your own manifests)
	@scripts/try
try-down: ## remove every trace of it
	@scripts/try-down
demo: ## a real cluster on this machine with Flowkeep and a small shop; stays up (DEPLOY=manifests: installed by deploy/flowkeep.yaml)
	@scripts/demo
demo-down: ## remove every trace of the demo
	@scripts/demo-down
demo-fleet: ## policy sync from a hub to two spokes, as docs/policy-sync.md has it; shows and ends (ARGS=-keep: stays up until ^C)
	@scripts/demo-fleet $(ARGS)
build: ## netmaster, netplugin, netctl, flowkeep-cni, macvtap into bin/
	@scripts/build
images: ## container images as OCI archives, with what is in them (ARGS=DIR, or --lock for newer packages)
	@scripts/images $(ARGS)
docs: ## the documentation as static HTML with a search, links checked (ARGS=DIR; default: dist/docs)
	@scripts/docs $(ARGS)
krew: ## netctl as kubectl's plugin for all platforms, with krew's manifest, into dist/krew (VERSION=v0.1.0 URL=https://…)
	@VERSION='$(VERSION)' URL='$(URL)' scripts/krew $(ARGS)
release: ## images, chart, manifest and netctl of a version into dist/ (VERSION=v0.1.0 KEY=FILE REGISTRY=HOST/PATH; docs/install.md)
	@VERSION='$(VERSION)' KEY='$(KEY)' REGISTRY='$(REGISTRY)' URL='$(URL)' scripts/release $(ARGS)
test: ## everything that guards enforcement: lint, unit, system tests; the last line counts (docs/testing.md)
	@scripts/test
preflight: ## what would fail make test for sure, in at most 3 minutes: formats, subjects, generated files, tests compile
	@scripts/preflight
lint: ## golangci-lint with the checks of go vet, gofmt
	@scripts/lint
unit: ## unit and property tests, with the race detector where there are goroutines
	@scripts/unit
fuzz: ## every fuzz target, 10,000 inputs each (FUZZTIME=30s for longer)
	@scripts/fuzz
system: ## system tests on clusters that it boots and removes (ARGS='-run NAME -reuse', '-only pods')
	@scripts/system $(ARGS)
test-kernel: ## system tests on the kernel's datapath and with SCTP, in a virtual machine (ARGS='-switch' or '-run NAME')
	@scripts/kernel $(ARGS)
conformance: ## the upstream NetworkPolicy suite on a cluster of its own (ARGS='-n 3 -m iptables -f dual -r 3 FOCUS', '-k': its SCTP specs, in a virtual machine; DEPLOY=manifests)
	@scripts/conformance $(ARGS)
soak: ## random changes and packets against the oracle (ARGS='-for 1h -seed N -steps M')
	@scripts/soak $(ARGS)
cyclonus: ## cyclonus' generated cases on a cluster of its own, about an hour (ARGS='-n 3 -- --include conflict')
	@scripts/cyclonus $(ARGS)
test-full: ## every part that is too long for make test, or PART='kernel-*'; continues after an interrupt (ARGS='-l' or '-n')
	@scripts/test-full $(ARGS) $(if $(PART),'$(PART)')
screenshots: ## the README's pictures of the page, from the demo
	@scripts/screenshots
bench: ## our figures beside the references and floors
	@scripts/bench
flakes: ## the gate in fresh clones, three times idle and three times busy, on record in docs/flakes.tsv (ARGS='-idle 1 -busy 0')
	@scripts/flakes $(ARGS)
generate: ## generated files again; fails if they had drifted
	@scripts/generate
