"""Stop in the middle of an epoch and go on later, elsewhere, from one small piece of JSON.

    python examples/plain_pyarrow/continue_elsewhere.py grpc://127.0.0.1:8815 photos

Every batch carries the ticket of what comes after it. A checkpoint of the training job that keeps
this ticket resumes exactly there, on any server that has the dataset: the server keeps no state.
"""

import json
import sys

import pyarrow.flight as fl

STOP_AFTER = 3

client = fl.connect(sys.argv[1])
request = {"dataset": sys.argv[2], "columns": ["id"], "shuffle": {"seed": 1}, "batch": 50}
info = client.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(request)))

served = []
checkpoint = info.endpoints[0].ticket.ticket
reader = client.do_get(info.endpoints[0].ticket)
for number, chunk in enumerate(reader, start=1):
    served += chunk.data["id"].to_pylist()
    checkpoint = json.dumps(json.loads(chunk.app_metadata.to_pybytes())["resume"]).encode()
    if number == STOP_AFTER:
        reader.cancel()
        break
print(len(served), "samples before the interruption; the checkpoint is")
print(checkpoint.decode())

client = fl.connect(sys.argv[1])
served += client.do_get(fl.Ticket(checkpoint)).read_all()["id"].to_pylist()
print(len(served), "samples in the end,", len(set(served)), "of them different,", info.total_records, "expected")
sys.exit(0 if len(served) == len(set(served)) == info.total_records else 1)
