package simulate

// File is what is simulated, as docs/simulate.md describes it. Sizes are in bytes.
type File struct {
	// Seed is what all is drawn by.
	Seed uint64 `json:"seed,omitempty"`
	// Sample is how many times larger everything is than what is run: 4 runs a quarter of the nodes, with a quarter of
	// the samples of each dataset, of each batch, and of the rates of the store.
	Sample   int64     `json:"sample,omitempty"`
	Nodes    Nodes     `json:"nodes"`
	Store    Store     `json:"store,omitempty"`
	Spill    Spill     `json:"spill,omitempty"`
	Node     Node      `json:"node,omitempty"`
	Network  Network   `json:"network,omitempty"`
	Datasets []Dataset `json:"datasets"`
	Jobs     []Job     `json:"jobs"`
	Faults   []Fault   `json:"faults,omitempty"`
}

// Rates are what a running server was measured to do: the defaults of a File.
type Rates struct {
	Store   Store   `json:"store,omitempty"`
	Spill   Spill   `json:"spill,omitempty"`
	Node    Node    `json:"node,omitempty"`
	Network Network `json:"network,omitempty"`
}

// Nodes says which nodes there are.
type Nodes struct {
	Count int64 `json:"count"`
	// Ranks run beside each node. Default 1.
	Ranks int64 `json:"ranks,omitempty"`
	// Zones are dealt out over the nodes one by one. Default 1.
	Zones int64 `json:"zones,omitempty"`
	// WindowBytes is what all streams of a node may hold. Default 512 MiB.
	WindowBytes int64 `json:"window_bytes,omitempty"`
	// Alone has each node be a server of its own, in no cluster.
	Alone bool `json:"alone,omitempty"`
}

// Store is where blobs come from.
type Store struct {
	LatencyMS float64 `json:"latency_ms,omitempty"`
	ReadsPerS float64 `json:"reads_per_s,omitempty"` // of all nodes together; 0: no limit
	BytesPerS float64 `json:"bytes_per_s,omitempty"` // likewise
}

// Spill is the cache of each node.
type Spill struct {
	Bytes          int64   `json:"bytes,omitempty"` // 0: none
	ReadBytesPerS  float64 `json:"read_bytes_per_s,omitempty"`
	WriteBytesPerS float64 `json:"write_bytes_per_s,omitempty"`
}

// Node is what a server's processors take.
type Node struct {
	USPerSample float64 `json:"us_per_sample,omitempty"`
	SPerGB      float64 `json:"s_per_gb,omitempty"`
	Cores       float64 `json:"cores,omitempty"` // 0: no limit
}

// Network is what nodes reach each other, and the store, by.
type Network struct {
	LatencyMS float64 `json:"latency_ms,omitempty"`
	// BytesPerS is what each node sends, and as much what it receives, the store's bytes included; 0: no limit.
	BytesPerS float64 `json:"bytes_per_s,omitempty"`
	// StoreBytesPerS is what each node receives from the store; 0: no limit.
	StoreBytesPerS float64 `json:"store_bytes_per_s,omitempty"`
	// ZoneLatencyMS comes on top between zones, and ZoneBytesPerS is what each zone sends to others, and receives.
	ZoneLatencyMS float64 `json:"zone_latency_ms,omitempty"`
	ZoneBytesPerS float64 `json:"zone_bytes_per_s,omitempty"`
}

// Dataset is made up: as many samples of one blob column.
type Dataset struct {
	Name    string `json:"name"`
	Samples int64  `json:"samples"`
	// Bytes is the mean size of a blob. Sizes are spread by a lognormal distribution, whose standard deviation is
	// Spread means.
	Bytes  int64   `json:"bytes"`
	Spread float64 `json:"spread,omitempty"`
}

// Job trains on a dataset.
type Job struct {
	Name    string  `json:"name,omitempty"` // default: job-1, job-2 …
	Dataset string  `json:"dataset"`
	StartS  float64 `json:"start_s,omitempty"`
	Epochs  int64   `json:"epochs,omitempty"` // default 1
	Batch   int64   `json:"batch"`            // of all ranks together
	Seed    uint64  `json:"seed,omitempty"`
	Assign  string  `json:"assign,omitempty"`
	Order   string  `json:"order,omitempty"`
	// Ranks is how many there are. Default: as many as run beside all nodes.
	Ranks int64 `json:"ranks,omitempty"`
	// First is the node that rank 0 runs beside, where ranks are fewer than nodes have. Default 0.
	First int64 `json:"first_node,omitempty"`
	// StepMS is what a step takes to compute.
	StepMS float64 `json:"step_ms,omitempty"`
	// Apart has ranks wait for each other after each epoch alone, not after each step.
	Apart bool `json:"apart,omitempty"`
	// PauseS is for how long all ranks do something else between two epochs, as evaluate.
	PauseS float64 `json:"pause_s,omitempty"`
	// Steps ends each epoch early; 0: it does not.
	Steps int64 `json:"steps,omitempty"`
}

// Fault is something that happens.
type Fault struct {
	AtS  float64 `json:"at_s"`
	Kind string  `json:"kind"`
	// Node is whom it happens to, counted from 0.
	Node *int64 `json:"node,omitempty"`
	// Other is the other end of a way that is cut. Default: all ways of the node.
	Other *int64 `json:"other,omitempty"`
	// ForS is for how long; 0: for good.
	ForS float64 `json:"for_s,omitempty"`
	// Factor is by how much something is slower.
	Factor float64 `json:"factor,omitempty"`
	// KeepCache has a node that comes back find its cache as it was.
	KeepCache bool `json:"keep_cache,omitempty"`
}

// Kinds of faults.
const (
	Kill      = "kill"       // the node's process is gone at once
	Leave     = "leave"      // the node ends in order
	Join      = "join"       // the node starts; one whose first fault this is was not there before
	Stop      = "stop"       // the node stands still, and says nothing
	Cut       = "cut"        // nothing gets from a node to another, or to any
	Slow      = "slow"       // a node's links carry a part of what they did
	StoreSlow = "store_slow" // the store does a part of what it did
)
