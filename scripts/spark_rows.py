#!/usr/bin/env python3
"""Writes small folders of rows with Spark itself and prints, as JSON, what Spark reads back: what a test expects.

    PYTHONPATH=.spark python3 scripts/spark_rows.py FOLDER      # a local folder, or a URL such as hdfs://host:8020/rows

Below FOLDER it makes, all with the same rows (every type that Spark writes, missing values, moments before 1970 and far
away):

    snappy-int96      day=.../part-*.snappy.parquet, timestamps as INT96, pages v1
    zstd-micros       the same with zstd, TIMESTAMP_MICROS, pages v2
    gzip-legacy       the same with gzip, INT96, lists and decimals in the form of Hive and of Spark before 1.6
    lz4-millis        the same with lz4, TIMESTAMP_MILLIS
    escaped           place=.../hour=.../ with values that are escaped in folder names, and missing ones
    text              day=.../part-*.txt.gz, Criteo's text

Printed: {"rows": {folder: [[id, column, ...], ...]}, "columns": [...]}, sorted by id. Moments are microseconds since
1970, days are days since 1970.
"""
import json
import os
import sys

# One thread, no web page, no adaptive plans, the quick compiler only: the start of the JVM is most of the time.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}

# The types in the words of Spark's SQL; `id` is the row.
COLUMNS = {
    "label": "cast(id % 3 = 0 as int)",
    "flag": "if(id % 7 = 0, null, id % 2 = 0)",
    "tiny": "cast(id % 200 - 100 as tinyint)",
    "small": "cast(id * 300 - 9000 as smallint)",
    "count": "if(id % 5 = 0, null, cast(id - 20 as int))",
    "total": "id * 10000000000",
    "ratio": "cast(id as float) / 8",
    "price": "if(id % 11 = 0, null, cast(id as double) / 16)",
    "word": "if(id % 4 = 0, null, concat('w', cast(id % 9 as string)))",
    "raw": "cast(concat('r', cast(id % 9 as string)) as binary)",
    "moment": """case cast(id as int)
        when 0 then null
        when 1 then timestamp_micros(-1)
        when 2 then timestamp_micros(-1001000)
        when 3 then timestamp'1583-01-01 00:00:00.123456'
        when 4 then timestamp'0001-01-01 00:00:00'
        when 5 then timestamp'2300-06-01 12:34:56.789012'
        when 6 then timestamp'9999-12-31 23:59:59.999999'
        else timestamp_micros(1795132800000000 + id * 1000001) end""",
    "date": "if(id = 0, null, date_add(date'1969-12-30', cast(id as int)))",
    "items": "case when id % 6 = 0 then null when id % 6 = 1 then array() else array(cast(id as int), 7) end",
    "tags": "if(id % 6 = 0, null, array('a', null, cast(id % 3 as string)))",
    "amount": "cast(id as decimal(10, 2))",
    "wide": "cast(id as decimal(30, 3))",
    "pair": "named_struct('a', cast(id as int), 'b', array('x'), 'at', timestamp_micros(id))",
    "scores": "map('k', cast(id as int))",
}
DAY = "concat('2026-11-', cast(18 + id % 3 as string))"
ROWS = 60

# What is printed of each column: as it is, unless JSON has no word for it.
PRINTED = {"moment": "unix_micros(moment)", "date": "unix_date(date)", "raw": "cast(raw as string)"}
LEFT_OUT = {"amount", "wide", "pair", "scores"}


def main(out):
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").appName("rows")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    # Two partitions, so that each day has two files.
    ids = spark.range(0, ROWS, 1, 2)
    rows = ids.selectExpr("id", *[f"{sql} as {name}" for name, sql in COLUMNS.items()], f"{DAY} as day")
    read = {}

    def keep(folder, frame, *columns):
        read[folder] = [list(row) for row in frame.orderBy("id").selectExpr(*columns).collect()]

    printed = [name for name in ("id", *COLUMNS, "day") if name not in LEFT_OUT]
    for folder, codec, timestamps, version, legacy in [
        ("snappy-int96", "snappy", "INT96", "v1", "false"),
        ("zstd-micros", "zstd", "TIMESTAMP_MICROS", "v2", "false"),
        ("gzip-legacy", "gzip", "INT96", "v1", "true"),
        ("lz4-millis", "lz4", "TIMESTAMP_MILLIS", "v1", "false"),
    ]:
        spark.conf.set("spark.sql.parquet.outputTimestampType", timestamps)
        spark.conf.set("spark.sql.parquet.writeLegacyFormat", legacy)
        path = f"{out}/{folder}"
        rows.write.partitionBy("day").option("compression", codec).option("parquet.writer.version", version).parquet(path)
        keep(folder, spark.read.parquet(path), *[f"{PRINTED.get(name, name)} as {name}" for name in printed])

    spark.conf.set("spark.sql.parquet.writeLegacyFormat", "false")
    places = r"array('a b', 'x/y=z', '100%', 'ü:?*', null)"
    escaped = ids.selectExpr("id", "1 as label", f"{places}[cast(id % 5 as int)] as place",
                             "if(id % 10 = 9, null, lpad(cast(id % 4 as string), 2, '0')) as hour")
    escaped.write.partitionBy("place", "hour").parquet(f"{out}/escaped")
    keep("escaped", spark.read.parquet(f"{out}/escaped"), "id", "place", "hour")

    line = "concat_ws('\t', '1', {}, {})".format(
        ", ".join(["cast(id as string)"] * 13), ", ".join(["lower(hex(id + 1))"] * 26))
    text = ids.selectExpr(f"{line} as value", f"{DAY} as day")
    text.write.partitionBy("day").option("compression", "gzip").text(f"{out}/text")
    keep("text", ids.selectExpr("id", f"{DAY} as day"), "id", "day")

    json.dump({"columns": printed, "rows": read}, sys.stdout)
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: spark_rows.py FOLDER")
    main(sys.argv[1])
