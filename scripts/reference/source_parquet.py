"""Makes crates/data/tests/fixtures/source/pyarrow.parquet: twelve rows as Hugging Face's datasets writes them.

    python source_parquet.py OUT        (pyarrow 26.0.1)

Row i: label i % 2, path "<i>.jpg", and as bytes two magic bytes and 100 i bytes of value i: no images, but bytes to compare.
"""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq

rows = range(12)
images = [{"bytes": b"\xff\xd8" + bytes([i]) * (100 * i), "path": f"{i:02}.jpg"} for i in rows]
features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
schema = pa.schema(
    [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())],
    metadata={"huggingface": json.dumps({"info": {"features": features}})},
)
table = pa.table({"image": images, "label": [i % 2 for i in rows]}, schema=schema)
pq.write_table(table, sys.argv[1], row_group_size=5, data_page_size=1024)
