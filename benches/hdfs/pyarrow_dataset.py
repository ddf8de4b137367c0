#!/usr/bin/env python3
"""Reads a folder of Parquet from a cluster of scripts/hdfs through pyarrow.dataset over libhdfs; one JSON line per pass.

    .tools/pyarrow-hdfs/venv/bin/python benches/hdfs/pyarrow_dataset.py .hdfs /rows --passes 5

What is timed: every row of every column into record batches, dropped as they come. The first pass also starts the JVM.
`mb_per_s` counts the files' bytes. `cpu_seconds` are this process's own, JVM included.
"""
import argparse
import json
import os
import resource
import shutil
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def environment(cluster):
    """What libhdfs reads when the first connection loads it."""
    script = ROOT / "scripts" / "hdfs"
    os.environ["CLASSPATH"] = subprocess.check_output([script, "classpath", cluster], text=True).strip()
    os.environ["HADOOP_CONF_DIR"] = str(cluster / "conf")
    os.environ["ARROW_LIBHDFS_DIR"] = str(ROOT / ".tools" / "pyarrow-hdfs")
    os.environ.setdefault("JAVA_HOME", str(Path(shutil.which("java")).resolve().parent.parent))
    # The bytes' checksums in Java, as libhdfs has it where libhadoop.so is not installed.
    os.environ.setdefault("LIBHDFS_OPTS", "-Xmx1g -XX:-UsePerfData")


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def one_pass(dataset, options):
    """Rows, bytes of Arrow, seconds, CPU seconds."""
    began, cpu = time.perf_counter(), cpu_seconds()
    rows = arrow_bytes = 0
    for batch in dataset.to_batches(batch_size=options.batch_rows, use_threads=True,
                                    fragment_readahead=options.fragment_readahead,
                                    batch_readahead=options.batch_readahead):
        rows += batch.num_rows
        arrow_bytes += batch.nbytes
    return rows, arrow_bytes, time.perf_counter() - began, cpu_seconds() - cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cluster", type=Path, help="the folder of scripts/hdfs")
    parser.add_argument("path", help="a folder of Parquet in it")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--batch-rows", type=int, default=131_072)
    parser.add_argument("--fragment-readahead", type=int, default=4, help="files ahead; pyarrow's default is 4")
    parser.add_argument("--batch-readahead", type=int, default=16, help="batches ahead; pyarrow's default is 16")
    parser.add_argument("--no-pre-buffer", action="store_true", help="do not coalesce a row group's ranges")
    options = parser.parse_args()
    environment(options.cluster.resolve())

    import pyarrow
    import pyarrow.dataset
    import pyarrow.fs

    pyarrow.set_cpu_count(options.threads)
    pyarrow.set_io_thread_count(max(8, 4 * options.threads))
    began = time.perf_counter()
    files = pyarrow.fs.HadoopFileSystem("default", 0)
    scan = pyarrow.dataset.ParquetFragmentScanOptions(pre_buffer=not options.no_pre_buffer)
    format = pyarrow.dataset.ParquetFileFormat(default_fragment_scan_options=scan)
    dataset = pyarrow.dataset.dataset(options.path, filesystem=files, format=format)
    file_bytes = sum(info.size for info in files.get_file_info(dataset.files))
    opened = time.perf_counter() - began
    for number in range(1, options.passes + 1):
        rows, arrow_bytes, seconds, cpu = one_pass(dataset, options)
        print(json.dumps({
            "reader": "pyarrow.dataset", "version": pyarrow.__version__, "pass": number, "files": len(dataset.files),
            "rows": rows, "seconds": round(seconds, 4), "rows_per_s": round(rows / seconds),
            "mb_per_s": round(file_bytes / seconds / 1e6, 1), "arrow_mb_per_s": round(arrow_bytes / seconds / 1e6, 1),
            "cpu_seconds": round(cpu, 3), "open_seconds": round(opened, 3), "threads": options.threads,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        }), flush=True)


if __name__ == "__main__":
    main()
