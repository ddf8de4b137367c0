# Everything a user or CI needs, each safe to run again. `make help` lists it.
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

SETUPS := libtorch tools hadoop spark python slurm manifests hosts

.PHONY: help demo test setup $(SETUPS:%=setup-%) hdfs-up hdfs-down lint bench clean-demo

help: ## list what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: ## rows, training, evaluation, a model folder; DATA=train.txt for real Criteo rows, BACKEND=torch for libtorch
	@BACKEND=$(BACKEND) DATA=$(DATA) ROWS=$(ROWS) scripts/demo $(DEMO)

test: setup ## every test: both backends, a real HDFS cluster, a real Slurm, several hosts
	cargo test --workspace --features torch

setup: $(SETUPS:%=setup-%) ## what the tests need beyond cargo: libtorch, cargo-deny, Hadoop, Spark, pyarrow, Slurm, kubectl

$(SETUPS:%=setup-%):
	@scripts/$@

hdfs-up: setup-hadoop ## a Hadoop cluster on this machine, in the folder .hdfs (HDFS=...); OPTIONS="--ha" and others
	@scripts/hdfs up $(HDFS) $(OPTIONS)
	@scripts/hdfs env $(HDFS)

hdfs-down: ## stop it; its files stay
	@scripts/hdfs down $(HDFS)

lint: setup ## fmt, clippy, doc, deny: all that CI checks beside the tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features torch,s3 -- -D warnings
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --features torch
	cargo deny check bans licenses sources

bench: ## all measurements of docs/performance.md that need no peer
	cargo bench --workspace

clean-demo: ## remove the demo's rows and model
	rm -rf $(DEMO)
