# Every target installs what it lacks (scripts/setup). CARGO_TARGET_DIR is honoured.
SHELL := /bin/bash
export PATH := $(PATH):$(HOME)/.cargo/bin
BINARY := $(or $(CARGO_TARGET_DIR),target)

# The static binary that packages carry, built by `make musl`.
MUSL := $(BINARY)/x86_64-unknown-linux-musl/release/gantry

.PHONY: run build release check test unit sim soak chaos ha endurance lint bench compare compare-kafka mqadmin musl install image deb packages-test

# Name server on 9876 and broker on 10911, on ./data. ARGS="--data /elsewhere" passes options on.
run: build
	$(BINARY)/fast/gantry server $(ARGS)

# Optimised, without the minutes of link-time optimisation.
build:
	scripts/setup build
	cargo build --profile fast -p server --bin gantry

# The binary to deploy: target/release/gantry.
release:
	scripts/setup build
	cargo build --release -p server --bin gantry

# The same without a library of the machine, for any Linux of this processor: what packages carry.
musl:
	scripts/setup musl
	CC_x86_64_unknown_linux_musl=musl-gcc cargo build --release --target x86_64-unknown-linux-musl -p server --bin gantry

# Puts the program, RocketMQ's names for its commands, manual pages and completions below DESTDIR and PREFIX. PROGRAM=… takes another one than `make
# release` builds. Builds nothing that is there, so that root need not: make release && sudo make install
PREFIX ?= /usr/local
PROGRAM ?= $(BINARY)/release/gantry
install:
	[ -x $(PROGRAM) ] || [ $(origin PROGRAM) != file ] || $(MAKE) release
	packaging/install $(PROGRAM) "$(DESTDIR)$(PREFIX)"

# What finds most mistakes in a few minutes: format, clippy, tests of what changed, 200 seeds, one class of stock clients. SINCE=COMMIT says since when,
# SEED=N the first seed, CLASS=NAME the class.
check:
	scripts/setup check
	SINCE=$(SINCE) SEED=$(SEED) CLASS=$(CLASS) scripts/check

# Our own tests, then stock clients and real Apache brokers against the binary. What these need is fetched while ours are compiled.
test:
	scripts/setup unit
	scripts/setup test
	tests/run fetch >/dev/null 2>&1 & fetching=$$!; $(MAKE) unit || { kill $$fetching; exit 1; }; wait $$fetching; tests/run

# Every command of the published mqadmin against Gantry and Apache: three minutes, most of them the tool's own waiting.
mqadmin:
	scripts/setup test
	tests/run mqadmin

# Twice as many at a time as there are processors: most tests wait for a device, a clock or a process.
unit:
	scripts/setup unit
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((2 * $$(nproc)))} cargo test --profile fast --workspace

# Seeds of the simulator (docs/testing.md), of all kinds. ARGS="--seed 7" tells one seed's story; --broker and --group play brokers, and groups over a
# network, --retention and --fail stores whose old files go, and on devices that fail, --copy a store and a copy of its log, --cluster a master and its
# slaves, --rare any of them with rare branches.
sim:
	scripts/setup build
	cargo run --profile fast -p sim -- $(ARGS)
ifeq ($(strip $(ARGS)),)
	cargo run --profile fast -p sim -- --retention --seeds 300
	cargo run --profile fast -p sim -- --fail --seeds 300
	cargo run --profile fast -p sim -- --retention --fail --seeds 300
	cargo run --profile fast -p sim -- --rare --seeds 300
	cargo run --profile fast -p sim -- --broker --seeds 300
	cargo run --profile fast -p sim -- --broker --rare --seeds 300
	cargo run --profile fast -p sim -- --group --seeds 300
	cargo run --profile fast -p sim -- --group --rare --seeds 300
	cargo run --profile fast -p sim -- --copy --seeds 300
	cargo run --profile fast -p sim -- --copy --rare --seeds 300
	cargo run --profile fast -p sim -- --cluster --seeds 300
	cargo run --profile fast -p sim -- --cluster --rare --seeds 300
endif

# As many seeds as there is time for, beginning where the clock says: stores, brokers, groups, retention, failing calls, copies and clusters in turn, without and with rare branches. One that finds something is named with what
# plays it again. Then a real Apache broker opens what crashes left of IMAGES more seeds. Then the server in cages of 128 and 256 MiB, half an hour,
# which needs root; ARGS="secs=30" makes that a quarter of an hour.
SECONDS ?= 3600
IMAGES ?= 25
soak:
	scripts/setup build
	scripts/setup java
	cargo run --profile fast -p sim -- --all --seconds $(SECONDS) --from $$(date +%s)000
	GANTRY_IMAGES=$(IMAGES) GANTRY_IMAGES_FROM=$$(date +%s)000 tests/run images
	bench/cage peers=gantry $(ARGS)

# kill -9 under load for ten minutes, or MINUTES=n, and then what was promised against what is there. SEED=n: the same kill moments again.
chaos: MINUTES ?= 10
chaos:
	scripts/setup build
	CHAOS_SECONDS=$$(($(MINUTES) * 60)) $(if $(SEED),CHAOS_SEED=$(SEED)) cargo test --profile fast -p server --test chaos -- --nocapture

# A master and its slave as processes, killed, stopped, lied to, without room, and with real Apache brokers: a line a row (docs/testing.md). REPEAT=n plays
# each n times; ROWS="T1 F17" those alone. Needs root for a disk that fills up.
ha: REPEAT ?= 1
ha:
	scripts/setup test
	REPEAT=$(REPEAT) tests/ha $(ROWS)

# Six tenths of what goes for two hours, or MINUTES=n, with a kill -9 every minute: nothing lost, nothing twice, memory within its limit, starts in time, a
# report with charts. ARGS="cage=256 body=4096": in a cage of memory, with other messages.
endurance: MINUTES ?= 120
endurance:
	scripts/setup endurance
	bench/soak minutes=$(MINUTES) $(ARGS)

# In the profile of the tests, which need what build scripts make (TLS in C) in that one as well.
lint:
	scripts/setup lint
	cargo fmt --all --check
	cargo clippy --profile fast --workspace --all-targets -- -D warnings
	cargo deny check licenses bans sources

# Micro-benchmarks of the hot path, a line each.
bench:
	scripts/setup build
	cargo bench --workspace

# The same stock client against Gantry and against Apache, on this machine, one after the other.
compare:
	scripts/setup test
	bench/compare

# Our own client against Gantry, and Kafka's tools against Kafka, on this machine, one after the other.
compare-kafka:
	scripts/setup test
	bench/compare-kafka

# The container images (docs/install.md): an OCI layout and archives for `docker load`, in target/image.
image: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
image: musl
	scripts/setup image
	packaging/image/make --binary $(MUSL) --out $(BINARY)/image $(ARGS)

# The Debian package (docs/install.md), in target/deb.
deb: musl
	scripts/setup deb
	packaging/deb/make --binary $(MUSL) --out $(BINARY)/deb $(ARGS)

# Packages, made, installed and run as a user does it: images in runc, the Debian package in a fresh root. Needs root.
packages-test: musl
	scripts/setup packages
	tests/packages/run --binary $(MUSL)
