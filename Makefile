# oroshi: what one types here. `make` alone lists it. The work is done by cargo and by scripts/.

TARGET := $(or $(CARGO_TARGET_DIR),target)
CARGO_RELEASE := cargo build --release --locked

.DEFAULT_GOAL := help
.PHONY: help build demo test bench bench-quick bench-rack bench-client bench-gate bench-gate-tls bench-push agent-faults agent-cost calibrate soak h2spec packages packages-test release site gem floor setup fmt clean bench-check planted push-faults

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

build: ## the oroshi command, as target/release/oroshi
	scripts/setup build
	$(CARGO_RELEASE) -p oroshi

demo: ## builds a part of it, and shows what it does: is a unix socket faster than TCP?
	scripts/setup build
	scripts/demo

test: ## every check and test that this machine can run
	scripts/test

bench: build floor ## oroshi beside wrk, ab and h2load; takes a quarter of an hour, writes docs/benchmarks/
	scripts/setup bench || true
	scripts/bench.py

bench-quick: build floor ## the same for a fast look; writes nothing
	scripts/setup bench || true
	scripts/bench.py --quick

bench-check: ## this tree beside its last release (or REF=...), by eight headline figures; ten minutes, on a quiet machine
	scripts/setup build gem bench || true
	scripts/bench-check

gem: ## the oroshi gem's native parts, in place: ruby/exe/oroshi-rack then runs from here
	scripts/setup build gem
	rake --directory ruby compile

bench-rack: build gem ## the gem beside Unicorn, Puma and nginx; takes up to an hour and a half, writes docs/benchmarks/
	scripts/setup bench || true
	scripts/bench-rack

bench-client: build gem ## HTTP clients beside each other, Rust's and Ruby's of this project among them; ten minutes, writes docs/benchmarks/
	scripts/setup bench || true
	scripts/bench-client

bench-gate: build ## the gateway beside nginx, HAProxy and nginx with Lua; half an hour, writes docs/benchmarks/
	scripts/setup bench || true
	scripts/bench-gate

bench-gate-tls: build ## TLS at the gateway beside nginx, HAProxy and the bare server; ten minutes
	scripts/setup bench || true
	scripts/bench-gate-tls

bench-push: build floor ## the push hub beside nginx's nchan; half an hour, writes docs/benchmarks/
	scripts/setup bench || true
	scripts/bench-push

agent-faults: ## agents, their coordinator and NATS, killed at 50 moments of real runs; eight minutes
	OROSHI_MOMENTS=50 cargo test --locked -p oroshi --test measure every_process_may_be_killed -- --nocapture

push-faults: ## three nodes of the push hub and NATS with JetStream under load, with 50 random faults; some minutes
	OROSHI_MOMENTS=50 cargo test --locked -p oroshi-push --test all stream_faults -- --nocapture

agent-cost: ## the CPU time and the memory of a coordinator with two hundred agents; on a quiet machine
	OROSHI_CPU_LIMIT=0.5 cargo test --locked --profile demo -p oroshi --test measure a_coordinator_adds_up -- --ignored --nocapture

h2spec: build ## what RFC 9113 demands, asked of target, gate, push, bench and fetch by h2spec; a minute
	scripts/setup test || true
	scripts/h2spec

calibrate: build ## how often comparisons are right: thousands on a virtual clock, 64 with real servers; an hour, on a quiet machine; writes docs/
	scripts/calibrate

planted: build ## whether 2 % more CPU time per request are found, and nothing is invented; up to ten hours, on a quiet machine
	scripts/planted

soak: ## a million requests each through the Rust and the Ruby client: memory stays flat; a few minutes
	scripts/setup build gem test || true
	OROSHI_SOAK=1000000 cargo test --locked -p oroshi-client --test memory memory_is_flat
	rake --directory ruby compile
	OROSHI_FETCHES=1000000 rake --directory ruby test TEST=test/client_waiting_test.rb TESTOPTS=-n/flat/

floor: ## the least that a request can cost: tools/floor
	scripts/setup build
	$(CARGO_RELEASE) --manifest-path tools/floor/Cargo.toml --target-dir $(TARGET)/floor

packages: ## static binaries, .deb, gem, image, SBOM and checksums, as target/packages; an hour on two CPUs
	scripts/packages

packages-test: ## installs each of these in a clean root, and uses it
	scripts/packages-test

release: ## checks that VERSION=0.1.0 can be released, builds and tests all of it, says what is next; tags nothing
	scripts/release $(VERSION)

site: ## the site from docs/, as target/site/html
	scripts/setup site
	scripts/site

setup: ## installs what building, testing and measuring need (as root, on Debian or Ubuntu)
	scripts/setup build test bench

fmt: ## formats the Rust code
	cargo fmt --all
	cargo fmt --manifest-path tools/floor/Cargo.toml

clean: ## removes what was built
	cargo clean
