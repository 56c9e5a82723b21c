"""The shortest use of a Bowstring server: python examples/plain_pyarrow/epoch.py grpc://127.0.0.1:8815 photos."""

import json
import sys

import pyarrow.flight as fl

client = fl.connect(sys.argv[1])
request = {"dataset": sys.argv[2], "split": "train", "shuffle": {"seed": 7, "epoch": 0}, "batch": 64}
info = client.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(request)))
print(info.total_records, "samples,", info.total_bytes, "bytes:", info.schema.names)
for chunk in client.do_get(info.endpoints[0].ticket):
    images, labels = chunk.data["image"], chunk.data["label"]
    about = json.loads(chunk.app_metadata.to_pybytes())
    print("step", about["step"], len(images), "images; first label", labels[0].as_py())
