package predict

import (
	"fmt"
	"math"

	"bowstring/schema"
)

// Rates are what was measured of a node and of what it stands on. A rate of 0 is not known,
// and limits nothing. As JSON they are what calibrate writes and simulate takes.
type Rates struct {
	Store   Store   `json:"store"`
	Spill   Spill   `json:"spill"`
	Node    Node    `json:"node"`
	Network Network `json:"network"`
}

// Store is the way from a node to the store, and the store itself. All nodes share what it
// gives.
type Store struct {
	LatencyMS   float64 `json:"latency_ms"`            // of a read, when nothing else is read
	ReadsPerS   float64 `json:"reads_per_s,omitempty"` // of small blobs
	BytesPerSec float64 `json:"bytes_per_s,omitempty"` // of large ones
}

// Spill is a node's disk.
type Spill struct {
	ReadBytesPerSec  float64 `json:"read_bytes_per_s,omitempty"`
	WriteBytesPerSec float64 `json:"write_bytes_per_s,omitempty"`
}

// Node is what serving costs a node's processors.
type Node struct {
	MicrosPerSample float64 `json:"us_per_sample,omitempty"` // processor time of a sample, however small
	SecondsPerGB    float64 `json:"s_per_gb,omitempty"`      // and of a gigabyte, 10^9 bytes
	Cores           float64 `json:"cores,omitempty"`         // that serving has
}

// Network is a node's way to the other nodes, and of a lone node the way to its consumers.
type Network struct {
	LatencyMS   float64 `json:"latency_ms,omitempty"`
	BytesPerSec float64 `json:"bytes_per_s,omitempty"`
}

// field is a rate by its name in JSON.
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

// Named lists the rates, in the order of JSON.
func (r Rates) Named() []Named {
	var list []Named
	for _, f := range r.fields() {
		list = append(list, Named{f.name, *f.at})
	}
	return list
}

// maxRate is more than any rate is.
const maxRate = 1e15

// Check fails with a schema.FieldError unless each rate is a number from 0 to 10^15. prefix
// begins the names of fields.
func (r Rates) Check(prefix string) error {
	for _, f := range r.fields() {
		if !(*f.at >= 0 && *f.at <= maxRate) { // also what is no number
			return &schema.FieldError{Field: prefix + f.name, Got: fmt.Sprint(*f.at),
				Want: "a number from 0 to 1e15; 0, or nothing, is for what is not known"}
		}
	}
	return nil
}

// Known reports whether anything is known that limits.
func (r Rates) Known() bool {
	s := r.Store
	return s.LatencyMS > 0 || s.ReadsPerS > 0 || s.BytesPerSec > 0
}

// Unknown names the parts of the way of a job whose rates are not known: a prediction takes them to limit nothing.
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

// Over returns r with what is not known taken from other.
func (r Rates) Over(other Rates) Rates {
	theirs := other.fields()
	for i, f := range r.fields() {
		if *f.at == 0 {
			*f.at = *theirs[i].at
		}
	}
	return r
}

// Change is a rate that is not what it was.
type Change struct {
	Rate string  `json:"rate"` // such as "store.bytes_per_s"
	Then float64 `json:"then"`
	Now  float64 `json:"now"`
}

// Changes lists the rates that are known of both times and differ by more than a share.
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
