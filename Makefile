# What users, developers and CI run. Every target is safe to run again. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# make demo
BACKEND ?= native
DATA ?=
ROWS ?= 400000
DEMO ?= demo

# make hdfs-up, hdfs-down
HDFS ?= .hdfs
OPTIONS ?=

export PATH := $(CURDIR)/.tools/bin:$(PATH)

SETUPS := libtorch tools hadoop spark python slurm manifests hosts chromium prometheus

# Tests that need more than cargo: what `make setup` fetches, a feature, root, a GPU, or a long time.
NEED_MORE := bench_device chaos checkpoint cluster dashboard export flight hdfs manifests own_program predict report_page slurm spans \
	tensorboard torch
# All others: files NAME.rs, folders with NAME/main.rs, and the members whose tests from the outside are one program, tests/main.rs.
ONE_PROGRAM := $(patsubst %/tests/main.rs,%,$(wildcard */tests/main.rs))
SEVERAL := $(filter-out $(ONE_PROGRAM),$(patsubst %/tests/,%,$(wildcard */tests/)))
TESTS := $(basename $(notdir $(wildcard tests/*.rs $(SEVERAL:%=%/tests/*.rs)))) $(ONE_PROGRAM) \
	$(notdir $(patsubst %/main.rs,%,$(wildcard tests/*/main.rs $(SEVERAL:%=%/tests/*/main.rs))))
CHECKED := $(sort $(filter-out $(NEED_MORE),$(TESTS)))
# Tests of the backend on libtorch, and of programs with and without it. Only for these does `make test` build the program with libtorch:
# it then takes .3 CPU seconds more to start, and the tests start it thousands of times.
TORCH_TESTS := apart golden gradients histories state torch transfer two_towers value_weights
BOTH_TESTS := bench_device transfers
NATIVE_TESTS := $(sort $(filter-out $(TORCH_TESTS),$(TESTS)))
# They take longest, and wait for much of their time: they run beside the other tests.
BESIDE := cluster hdfs own_program

.PHONY: help demo check test chaos soak setup $(SETUPS:%=setup-%) hdfs-up hdfs-down lint docs bench clean-demo

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: ## make rows, train, evaluate, save a model folder; DATA=train.txt for real Criteo rows, BACKEND=torch for libtorch
	@BACKEND=$(BACKEND) DATA=$(DATA) ROWS=$(ROWS) scripts/demo $(DEMO)

check: ## fmt, clippy and the tests that need no download: before each commit
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo build --workspace --examples
	cargo test --workspace --lib $(CHECKED:%=--test %)
	cargo test --workspace --doc

test: setup ## every test: both backends, a real HDFS cluster, a real Slurm, several hosts
	cargo build --workspace --features otel --examples
	cargo test --workspace --no-run --features otel $(NATIVE_TESTS:%=--test %)
	failed=0; beside=; \
	for test in $(BESIDE); do \
		RUST_TEST_THREADS=3 cargo test --workspace --no-fail-fast --features otel --test $$test >target/$$test.log 2>&1 & beside+=" $$!"; \
	done; \
	cargo test --workspace --no-fail-fast --features otel $(patsubst %,--test %,$(filter-out $(BESIDE),$(NATIVE_TESTS))) || failed=1; \
	cargo test --workspace --no-fail-fast --features otel --doc || failed=1; \
	for test in $$beside; do wait $$test || failed=1; done; cat $(BESIDE:%=target/%.log); \
	cargo test --workspace --no-fail-fast --features torch,otel --lib --bins $(TORCH_TESTS:%=--test %) \
		$(BOTH_TESTS:%=--test %) || failed=1; \
	exit $$failed

chaos: ## kill, stop and cut off the processes of 100 runs at random times (ROUNDS_OF_CHAOS=..., SEED=...; root); every row must be trained on once
	FOREBAY_CHAOS_ROUNDS=$(or $(ROUNDS_OF_CHAOS),100) FOREBAY_CHAOS_SEED=$(or $(SEED),1) cargo test --workspace --features torch --test chaos -- --nocapture

soak: ## train for an hour (SECONDS=...) with six processes and checkpoints; memory, descriptors and threads must not grow
	cargo build --release
	scripts/soak target/release/forebay $(if $(filter undefined environment,$(origin SECONDS)),3600,$(SECONDS))

setup: $(SETUPS:%=setup-%) ## fetch what the tests need beyond cargo: libtorch, cargo-deny, Hadoop, Spark, pyarrow, Slurm, kubectl, Chromium, Prometheus

$(SETUPS:%=setup-%):
	@scripts/$@

hdfs-up: setup-hadoop ## start a Hadoop cluster on this machine, in the folder .hdfs (HDFS=...); OPTIONS="--ha" and others
	@scripts/hdfs up $(HDFS) $(OPTIONS)
	@scripts/hdfs env $(HDFS)

hdfs-down: ## stop the Hadoop cluster and keep its files
	@scripts/hdfs down $(HDFS)

lint: setup ## fmt, clippy, doc, deny, packages: what CI checks besides the tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features torch,s3,otel -- -D warnings
	cargo clippy --workspace -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --features torch,s3,otel
	cargo deny check bans licenses sources
# --no-verify: verifying would compile every crate once more, from its package. The builds above have compiled the same files.
	cargo package --workspace --no-verify --allow-dirty

docs: ## docs/job.md and the template of `forebay plan --job-file`, from the doc comments of the job's fields
	FOREBAY_WRITE_DOCS=1 cargo test --workspace --test job_reference -- reference

bench: setup-hadoop ## the measurements of docs/performance.md that need no other framework
	cargo bench --workspace

clean-demo: ## remove the demo's rows and model
	rm -rf $(DEMO)
