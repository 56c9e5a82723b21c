package simulate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// File describes a simulation; see docs/simulate.md. Sizes are in bytes.
type File struct {
	// Seed is the seed of all random choices.
	Seed uint64 `json:"seed,omitempty"`
	// Sample is the factor by which the run is smaller: 4 runs a quarter of the nodes, with a quarter of the samples
	// of each dataset, of each batch, and of the rates of the store.
	Sample   int64     `json:"sample,omitempty"`
	Nodes    Nodes     `json:"nodes"`
	Store    Store     `json:"store,omitempty"`
	Bucket   Bucket    `json:"bucket,omitempty"`
	Spill    Spill     `json:"spill,omitempty"`
	Node     Node      `json:"node,omitempty"`
	Network  Network   `json:"network,omitempty"`
	Datasets []Dataset `json:"datasets"`
	Jobs     []Job     `json:"jobs"`
	Faults   []Fault   `json:"faults,omitempty"`
}

// Rates are measured rates of a running server: the defaults of a File.
type Rates struct {
	Store   Store   `json:"store,omitempty"`
	Bucket  Bucket  `json:"bucket,omitempty"`
	Spill   Spill   `json:"spill,omitempty"`
	Node    Node    `json:"node,omitempty"`
	Network Network `json:"network,omitempty"`
}

// Nodes describes the nodes.
type Nodes struct {
	Count int64 `json:"count"`
	// Ranks run beside each node. Default 1.
	Ranks int64 `json:"ranks,omitempty"`
	// Zones are assigned to the nodes in rotation. Default 1.
	Zones int64 `json:"zones,omitempty"`
	// WindowBytes is the memory of all streams of a node. Default 512 MiB.
	WindowBytes int64 `json:"window_bytes,omitempty"`
	// Alone makes each node a single server without a cluster.
	Alone bool `json:"alone,omitempty"`
}

// Store is the source of blobs.
type Store struct {
	LatencyMS float64 `json:"latency_ms,omitempty"`
	ReadsPerS float64 `json:"reads_per_s,omitempty"` // of all nodes together; 0: no limit
	BytesPerS float64 `json:"bytes_per_s,omitempty"` // of all nodes together; 0: no limit
}

// Bucket holds the datasets in objects.
type Bucket struct {
	// URL determines the prices. Default "s3://bucket?region=us-east-1".
	URL string `json:"url,omitempty"`
	// Transfer is the path of its bytes, which determines their price. Default "in-region".
	Transfer  string  `json:"transfer,omitempty"`
	LatencyMS float64 `json:"latency_ms,omitempty"`
	BytesPerS float64 `json:"bytes_per_s,omitempty"` // to all nodes together; 0: no limit
	// RequestsPerS is how many requests per second it answers, from all nodes together; it refuses more. 0: no limit.
	RequestsPerS float64 `json:"requests_per_s,omitempty"`
	// USPerRequest and SPerGB are the node's CPU time for requests, and for the bytes that they bring.
	USPerRequest float64 `json:"us_per_request,omitempty"`
	SPerGB       float64 `json:"s_per_gb,omitempty"`
}

// Spill is the cache of each node.
type Spill struct {
	Bytes          int64   `json:"bytes,omitempty"` // 0: none
	ReadBytesPerS  float64 `json:"read_bytes_per_s,omitempty"`
	WriteBytesPerS float64 `json:"write_bytes_per_s,omitempty"`
}

// Node is the server's CPU time.
type Node struct {
	USPerSample float64 `json:"us_per_sample,omitempty"`
	SPerGB      float64 `json:"s_per_gb,omitempty"`
	Cores       float64 `json:"cores,omitempty"` // 0: no limit
}

// Network connects nodes to each other and to the store.
type Network struct {
	LatencyMS float64 `json:"latency_ms,omitempty"`
	// BytesPerS is what each node may send, and receive, with the store's bytes; 0: no limit.
	BytesPerS float64 `json:"bytes_per_s,omitempty"`
	// StoreBytesPerS is what each node may receive from the store; 0: no limit.
	StoreBytesPerS float64 `json:"store_bytes_per_s,omitempty"`
	// ZoneLatencyMS is added between zones. ZoneBytesPerS is what each zone may send to others, and receive.
	ZoneLatencyMS float64 `json:"zone_latency_ms,omitempty"`
	ZoneBytesPerS float64 `json:"zone_bytes_per_s,omitempty"`
}

// Dataset is generated, with one blob column.
type Dataset struct {
	Name    string `json:"name"`
	Samples int64  `json:"samples"`
	// Bytes is the mean size of a blob. Sizes have a lognormal distribution, whose standard deviation is Spread
	// means.
	Bytes  int64   `json:"bytes"`
	Spread float64 `json:"spread,omitempty"`
	// ObjectBytes puts samples one after the other into objects of a bucket, each of at most that many bytes; a
	// larger sample is an object. 0: they are in the store.
	ObjectBytes int64 `json:"object_bytes,omitempty"`
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
	// Ranks is the number of ranks. Default: those beside all nodes.
	Ranks int64 `json:"ranks,omitempty"`
	// First is the node beside rank 0, if there are fewer ranks than the nodes have. Default 0.
	First int64 `json:"first_node,omitempty"`
	// StepMS is the compute time of a step.
	StepMS float64 `json:"step_ms,omitempty"`
	// Apart makes ranks wait for each other only after each epoch, not after each step.
	Apart bool `json:"apart,omitempty"`
	// PauseS is how long all ranks do something else between two epochs, such as evaluation.
	PauseS float64 `json:"pause_s,omitempty"`
	// Steps ends each epoch early; 0: it does not.
	Steps int64 `json:"steps,omitempty"`
}

// Fault is an event.
type Fault struct {
	AtS  float64 `json:"at_s"`
	Kind string  `json:"kind"`
	// Node is the affected node, counted from 0.
	Node *int64 `json:"node,omitempty"`
	// Other is the other end of a pair that is cut. Default: all pairs of the node.
	Other *int64 `json:"other,omitempty"`
	// ForS is its duration; 0: for good.
	ForS float64 `json:"for_s,omitempty"`
	// Factor is by how much something is slower.
	Factor float64 `json:"factor,omitempty"`
	// KeepCache keeps the cache of a node that comes back.
	KeepCache bool `json:"keep_cache,omitempty"`
}

// Kinds of faults.
const (
	Kill      = "kill"       // the node's process is killed
	Leave     = "leave"      // the node ends cleanly
	Join      = "join"       // the node starts; if this is its first fault, it did not exist before
	Stop      = "stop"       // the node is stalled, and sends nothing
	Cut       = "cut"        // no traffic between the node and another, or any other
	Slow      = "slow"       // a node's links carry a fraction of their capacity
	StoreSlow = "store_slow" // the store has a fraction of its capacity
)

// Parse parses a file, in JSON or YAML. rates has the defaults, in JSON or YAML; nil
// means none. Parse is strict: its error is a [schema.FieldError] with the field, its
// value and the values that it takes.
func Parse(file, rates []byte) (*File, error) {
	text, err := asJSON("file", file)
	if err != nil {
		return nil, err
	}
	if rates != nil {
		defaults, err := asJSON("rates", rates)
		if err != nil {
			return nil, err
		}
		if defaults, err = ratesAlone(defaults); err != nil {
			return nil, err
		}
		if err := schema.DecodeJSON("rates", defaults, &Rates{}); err != nil {
			return nil, fmt.Errorf("rates: %w", err)
		}
		if err := schema.DecodeJSON("file", text, &File{}); err != nil {
			return nil, err // before it is merged, so that duplicates are found
		}
		if text, err = merge(defaults, text); err != nil {
			return nil, err
		}
	}
	f := &File{}
	if err := schema.DecodeJSON("file", text, f); err != nil {
		return nil, err
	}
	f.ensureDefaults()
	return f, f.check()
}

// asJSON converts YAML to JSON, so that one strict decoder parses both.
func asJSON(where string, text []byte) ([]byte, error) {
	if trimmed := bytes.TrimSpace(text); len(trimmed) == 0 || trimmed[0] == '{' {
		return trimmed, nil
	}
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		return nil, &schema.FieldError{Field: where, Got: strings.TrimPrefix(err.Error(), "yaml: "),
			Want: "an object in JSON or YAML"}
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, &schema.FieldError{Field: where, Got: err.Error(), Want: "an object in JSON or YAML"}
	}
	return b, nil
}

// ratesAlone drops what calibrate writes in addition to the rates: their uncertainty and origin.
func ratesAlone(text []byte) ([]byte, error) {
	var all map[string]json.RawMessage
	if json.Unmarshal(text, &all) != nil {
		return text, nil //nolint:nilerr // the decoder returns the error
	}
	for _, name := range []string{"uncertainty", "server", "dataset", "at"} {
		delete(all, name)
	}
	return json.Marshal(all)
}

// merge returns the fields of under, replaced by those of over, recursively.
func merge(under, over []byte) ([]byte, error) {
	var low, high map[string]json.RawMessage
	if json.Unmarshal(over, &high) != nil || json.Unmarshal(under, &low) != nil {
		return over, nil //nolint:nilerr // not objects: over counts
	}
	for name, value := range high {
		if old, ok := low[name]; ok {
			var err error
			if value, err = merge(old, value); err != nil {
				return nil, err
			}
		}
		if low == nil {
			low = map[string]json.RawMessage{}
		}
		low[name] = value
	}
	return json.Marshal(low)
}

// ensureDefaults sets the fields that were left out.
func (f *File) ensureDefaults() {
	one := func(n *int64) {
		if *n == 0 {
			*n = 1
		}
	}
	one(&f.Sample)
	one(&f.Nodes.Ranks)
	one(&f.Nodes.Zones)
	if f.Nodes.WindowBytes == 0 {
		f.Nodes.WindowBytes = 512 << 20
	}
	if f.Bucket.URL == "" {
		f.Bucket.URL = "s3://bucket?region=us-east-1"
	}
	if f.Bucket.Transfer == "" {
		f.Bucket.Transfer = string(object.InRegion)
	}
	for i := range f.Jobs {
		j := &f.Jobs[i]
		one(&j.Epochs)
		if j.Name == "" {
			j.Name = fmt.Sprintf("job-%d", i+1)
		}
		if j.Ranks == 0 {
			j.Ranks = f.Nodes.Count * f.Nodes.Ranks
		}
		if j.Assign == "" {
			j.Assign = schema.AssignPlan
		}
	}
	for i := range f.Faults {
		if x := &f.Faults[i]; x.Factor == 0 && (x.Kind == Slow || x.Kind == StoreSlow) {
			x.Factor = 10
		}
	}
}

// rule is a constraint of a field.
type rule struct {
	field string
	got   any
	ok    bool
	want  string
}

// firstBroken returns the error of the first rule that does not hold.
func firstBroken(rules []rule) error {
	for _, r := range rules {
		if !r.ok {
			return &schema.FieldError{Field: r.field, Got: fmt.Sprint(r.got), Want: r.want}
		}
	}
	return nil
}

// maxNodes and maxSamples limit a run: nodes, and samples of all datasets together. The
// other limits keep times and sizes within the range of their types.
const (
	maxNodes   = 1024
	maxSamples = 1 << 26
	maxTime    = 1e9 // seconds; some 30 years
	maxBytes   = 64 << 20
	maxRanks   = 1 << 16
)

// check checks all fields. It returns the first error, because later ones may follow from
// it.
func (f *File) check() error {
	between := func(field string, got, low, high int64) rule {
		return rule{field, got, got >= low && got <= high, fmt.Sprintf("%d to %d", low, high)}
	}
	rate := func(field string, got float64) rule {
		return rule{field, got, got >= 0 && got <= 1e15 && !math.IsNaN(got), "0 to 1e15; 0 for no limit"}
	}
	span := func(field string, got, most float64) rule {
		return rule{field, got, got >= 0 && got <= most, fmt.Sprintf("0 to %g", most)}
	}
	n := f.Nodes
	if _, prefix, err := object.SplitURL(f.Bucket.URL); err != nil || prefix != "" {
		return &schema.FieldError{Field: "bucket.url", Got: schema.Quote(f.Bucket.URL),
			Want: "the URL of a bucket, without a prefix, such as s3://bucket?region=us-east-1"}
	}
	err := firstBroken([]rule{
		between("nodes.count", n.Count, 1, maxNodes), between("nodes.ranks", n.Ranks, 1, 64),
		between("nodes.zones", n.Zones, 1, n.Count),
		between("nodes.window_bytes", n.WindowBytes, 1<<20, 1<<40),
		{"sample", f.Sample, f.Sample >= 1 && f.Sample <= 64 && n.Count%f.Sample == 0 && n.Count/f.Sample >= 1,
			"1 to 64, a divisor of nodes.count"},
		span("store.latency_ms", f.Store.LatencyMS, 1e6), rate("store.reads_per_s", f.Store.ReadsPerS),
		rate("store.bytes_per_s", f.Store.BytesPerS),
		{"bucket.transfer", schema.Quote(f.Bucket.Transfer),
			slices.Contains(object.Transfers(), object.Transfer(f.Bucket.Transfer)),
			fmt.Sprintf("one of %q", object.Transfers())},
		span("bucket.latency_ms", f.Bucket.LatencyMS, 1e6), rate("bucket.bytes_per_s", f.Bucket.BytesPerS),
		rate("bucket.requests_per_s", f.Bucket.RequestsPerS), span("bucket.us_per_request", f.Bucket.USPerRequest, 1e9),
		span("bucket.s_per_gb", f.Bucket.SPerGB, 1e6),
		{"spill.bytes", f.Spill.Bytes, f.Spill.Bytes == 0 || f.Spill.Bytes >= minSpill && f.Spill.Bytes <= 1<<50,
			fmt.Sprintf("0 for none, or %d to 2^50", int64(minSpill))},
		rate("spill.read_bytes_per_s", f.Spill.ReadBytesPerS), rate("spill.write_bytes_per_s", f.Spill.WriteBytesPerS),
		span("node.us_per_sample", f.Node.USPerSample, 1e9), span("node.s_per_gb", f.Node.SPerGB, 1e6),
		span("node.cores", f.Node.Cores, 4096),
		span("network.latency_ms", f.Network.LatencyMS, 1e6), rate("network.bytes_per_s", f.Network.BytesPerS),
		rate("network.store_bytes_per_s", f.Network.StoreBytesPerS),
		span("network.zone_latency_ms", f.Network.ZoneLatencyMS, 1e6),
		rate("network.zone_bytes_per_s", f.Network.ZoneBytesPerS),
		{"datasets", len(f.Datasets), len(f.Datasets) >= 1 && len(f.Datasets) <= 64, "1 to 64 of them"},
		{"jobs", len(f.Jobs), len(f.Jobs) >= 1 && len(f.Jobs) <= 64, "1 to 64 of them"},
		{"faults", len(f.Faults), len(f.Faults) <= 10000, "at most 10000"},
	})
	if err != nil {
		return err
	}
	names, samples := map[string]int64{}, int64(0)
	for i, d := range f.Datasets {
		at := fmt.Sprintf("datasets[%d].", i)
		if err := schema.CheckName(at+"name", d.Name); err != nil {
			return err
		}
		_, twice := names[d.Name]
		names[d.Name] = d.Samples
		err := firstBroken([]rule{
			{at + "name", d.Name, !twice, "a name that no other dataset has"},
			between(at+"samples", d.Samples, f.Sample, maxSamples), between(at+"bytes", d.Bytes, 1, maxBytes),
			span(at+"spread", d.Spread, 4),
			{at + "object_bytes", d.ObjectBytes, d.ObjectBytes == 0 || d.ObjectBytes >= 1<<20 && d.ObjectBytes <= 1<<40,
				"0 for none, or 2^20 to 2^40"},
		})
		if err != nil {
			return err
		}
		samples += d.Samples
	}
	if samples > maxSamples {
		return &schema.FieldError{Field: "datasets", Got: fmt.Sprintf("%d samples", samples),
			Want: fmt.Sprintf("at most %d together", maxSamples)}
	}
	if err := f.checkJobs(names); err != nil {
		return err
	}
	return f.checkFaults()
}

// checkJobs checks the jobs. datasets has the number of samples by name.
func (f *File) checkJobs(datasets map[string]int64) error {
	taken := map[string]bool{}
	for i, j := range f.Jobs {
		at := fmt.Sprintf("jobs[%d].", i)
		samples, there := datasets[j.Dataset]
		world := f.Nodes.Count * f.Nodes.Ranks
		err := firstBroken([]rule{
			{at + "name", schema.Quote(j.Name), len(j.Name) <= 64 && !taken[j.Name],
				"at most 64 bytes that no other job has"},
			{at + "dataset", schema.Quote(j.Dataset), there, "the name of one of datasets"},
			{at + "start_s", j.StartS, j.StartS >= 0 && j.StartS <= maxTime, "0 to 1e9"},
			{at + "epochs", j.Epochs, j.Epochs >= 1 && j.Epochs <= 10000, "1 to 10000"},
			{at + "ranks", j.Ranks, j.Ranks >= 1 && j.Ranks <= min(world, maxRanks) && j.Ranks%f.Sample == 0,
				fmt.Sprintf("1 to nodes.count × nodes.ranks, which is %d, a multiple of sample", world)},
			{at + "first_node", j.First, j.First >= 0 && j.First < f.Nodes.Count/f.Sample, "a node's number, from 0"},
			{at + "batch", j.Batch, j.Batch >= j.Ranks && j.Batch <= samples && j.Batch%f.Sample == 0,
				fmt.Sprintf("%d to %d: a sample for each rank, of those that there are; a multiple of sample", j.Ranks,
					samples)},
			{at + "assign", schema.Quote(j.Assign), j.Assign == schema.AssignPlan || j.Assign == schema.AssignLocal,
				`"plan" or "local"`},
			{at + "assign", schema.Quote(j.Assign), j.Assign == schema.AssignPlan ||
				j.Batch/f.Sample <= schema.MaxLocalBatch, fmt.Sprintf(`"plan" where batch is above %d`,
				int64(schema.MaxLocalBatch))},
			{at + "pause_s", j.PauseS, j.PauseS >= 0 && j.PauseS <= 1e6, "0 to 1e6"},
			{at + "step_ms", j.StepMS, j.StepMS >= 0 && j.StepMS <= 1e9, "0 to 1e9"},
			{at + "steps", j.Steps, j.Steps >= 0, "0 or more"},
		})
		if err != nil {
			return err
		}
		taken[j.Name] = true
		req := schema.Request{Dataset: j.Dataset, Batch: j.Batch, Order: j.Order}
		if err := req.Check(); err != nil {
			return fmt.Errorf("%s%w", at, err)
		}
	}
	return nil
}

// checkFaults checks the faults. Each kind takes its own fields, and others are errors.
func (f *File) checkFaults() error {
	nodes := f.Nodes.Count / f.Sample
	for i, x := range f.Faults {
		at := fmt.Sprintf("faults[%d].", i)
		is := func(kinds ...string) bool {
			for _, k := range kinds {
				if x.Kind == k {
					return true
				}
			}
			return false
		}
		in := func(n *int64) bool { return n != nil && *n >= 0 && *n < nodes }
		show := func(n *int64) any {
			if n == nil {
				return "nothing"
			}
			return *n
		}
		err := firstBroken([]rule{
			{at + "kind", schema.Quote(x.Kind), is(Kill, Leave, Join, Stop, Cut, Slow, StoreSlow),
				`"kill", "leave", "join", "stop", "cut", "slow" or "store_slow"`},
			{at + "at_s", x.AtS, x.AtS >= 0 && x.AtS <= maxTime, "0 to 1e9"},
			{at + "for_s", x.ForS, x.ForS >= 0 && x.ForS <= maxTime, "0 to 1e9; 0 for good"},
			{at + "for_s", x.ForS, x.ForS == 0 || !is(Leave, Join), "nothing: it is of faults that pass"},
			{at + "for_s", x.ForS, x.ForS > 0 || !is(Stop), "more than 0: a stall without end is a kill"},
			{at + "node", show(x.Node), in(x.Node) || is(StoreSlow), fmt.Sprintf("a node's number, 0 to %d", nodes-1)},
			{at + "node", show(x.Node), x.Node == nil || !is(StoreSlow), "nothing: it happens to the store"},
			{at + "other", show(x.Other), x.Other == nil || is(Cut) && in(x.Other),
				fmt.Sprintf("the number of another node, 0 to %d, where a way is cut", nodes-1)},
			{at + "factor", x.Factor, x.Factor == 0 || is(Slow, StoreSlow) && x.Factor >= 1 && x.Factor <= 1e6,
				"1 to 1e6, of what is slow"},
			{at + "keep_cache", x.KeepCache, !x.KeepCache || is(Kill, Join),
				"nothing: it is of a join, or a kill that passes"},
		})
		if err != nil {
			return err
		}
	}
	return nil
}
