package predict

import (
	"fmt"
	"math"

	"bowstring/schema"
)

// Rates are the measured rates of a node and of what it depends on. A rate of 0 is unknown and limits nothing.
// The JSON form is what calibrate writes and simulate reads.
type Rates struct {
	Store   Store   `json:"store"`
	Spill   Spill   `json:"spill"`
	Node    Node    `json:"node"`
	Network Network `json:"network"`
}

// Store is the store and the network to it. All nodes share its throughput.
type Store struct {
	LatencyMS   float64 `json:"latency_ms"`            // of a read with no other read in flight
	ReadsPerS   float64 `json:"reads_per_s,omitempty"` // for small blobs
	BytesPerSec float64 `json:"bytes_per_s,omitempty"` // for large blobs
}

// Spill is a node's cache disk.
type Spill struct {
	ReadBytesPerSec  float64 `json:"read_bytes_per_s,omitempty"`
	WriteBytesPerSec float64 `json:"write_bytes_per_s,omitempty"`
}

// Node is what serving costs a node in CPU time.
type Node struct {
	MicrosPerSample float64 `json:"us_per_sample,omitempty"` // CPU time per sample of any size
	SecondsPerGB    float64 `json:"s_per_gb,omitempty"`      // CPU time per 10^9 bytes
	Cores           float64 `json:"cores,omitempty"`         // that serving can use
}

// Network is the network between nodes, or from a single node to its consumers.
type Network struct {
	LatencyMS   float64 `json:"latency_ms,omitempty"`
	BytesPerSec float64 `json:"bytes_per_s,omitempty"`
}

// field is a rate with its name in JSON.
type field struct {
	name string
	at   *float64
}

func (r *Rates) fields() []field {
	return []field{
		{"store.latency_ms", &r.Store.LatencyMS}, {"store.reads_per_s", &r.Store.ReadsPerS},
		{"store.bytes_per_s", &r.Store.BytesPerSec},
		{"spill.read_bytes_per_s", &r.Spill.ReadBytesPerSec}, {"spill.write_bytes_per_s", &r.Spill.WriteBytesPerSec},
		{"node.us_per_sample", &r.Node.MicrosPerSample}, {"node.s_per_gb", &r.Node.SecondsPerGB},
		{"node.cores", &r.Node.Cores},
		{"network.latency_ms", &r.Network.LatencyMS}, {"network.bytes_per_s", &r.Network.BytesPerSec},
	}
}

// Named is a rate with its name in JSON.
type Named struct {
	Name  string
	Value float64
}

// Named lists the rates in the order of JSON.
func (r Rates) Named() []Named {
	var list []Named
	for _, f := range r.fields() {
		list = append(list, Named{f.name, *f.at})
	}
	return list
}

// maxRate is above any real rate.
const maxRate = 1e15

// Check returns a schema.FieldError unless each rate is a number from 0 to 10^15. prefix is put before the
// names of fields.
func (r Rates) Check(prefix string) error {
	for _, f := range r.fields() {
		if !(*f.at >= 0 && *f.at <= maxRate) { // false for NaN
			return &schema.FieldError{Field: prefix + f.name, Got: fmt.Sprint(*f.at),
				Want: "a number from 0 to 1e15; 0, or nothing, is for what is not known"}
		}
	}
	return nil
}

// Known reports whether any rate of the store is known.
func (r Rates) Known() bool {
	s := r.Store
	return s.LatencyMS > 0 || s.ReadsPerS > 0 || s.BytesPerSec > 0
}

// Unknown names the stages that a job uses and whose rates are unknown. A prediction assumes that they limit
// nothing.
func (r Rates) Unknown(j *Job) []string {
	unknown := []string{}
	for _, part := range []struct {
		limit Limit
		used  bool
		rate  float64
	}{
		{ByStore, j.RowReads > 0, r.Store.ReadsPerS + r.Store.BytesPerSec},
		{BySpill, j.RowReads > 0 && j.CacheBytes > 0, r.Spill.ReadBytesPerSec},
		{ByNode, true, r.Node.Cores},
		{ByNetwork, j.Nodes > 1, r.Network.BytesPerSec},
	} {
		if part.used && part.rate == 0 {
			unknown = append(unknown, string(part.limit))
		}
	}
	return unknown
}

// Over returns r with its unknown rates taken from other.
func (r Rates) Over(other Rates) Rates {
	theirs := other.fields()
	for i, f := range r.fields() {
		if *f.at == 0 {
			*f.at = *theirs[i].at
		}
	}
	return r
}

// Change is a rate that has changed.
type Change struct {
	Rate string  `json:"rate"` // such as "store.bytes_per_s"
	Then float64 `json:"then"`
	Now  float64 `json:"now"`
}

// Changes lists the rates known in both that differ by more than share.
func Changes(then, now Rates, share float64) []Change {
	list := []Change{}
	after := now.fields()
	for i, f := range then.fields() {
		a, b := *f.at, *after[i].at
		if a > 0 && b > 0 && math.Abs(b-a) > share*max(a, b) {
			list = append(list, Change{f.name, a, b})
		}
	}
	return list
}
