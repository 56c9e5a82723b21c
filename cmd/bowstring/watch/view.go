package watch

import (
	"time"

	"bowstring/flight"
)

// Look is what is seen of a server at a moment.
type Look struct {
	At    time.Time
	Stats flight.Stats
	More  []flight.StreamMore // of the streams, in their order; nil where it is not known
}

// View is what was between two looks. Rates are a second, shares of 1.
type View struct {
	At       time.Time `json:"at"`
	Server   string    `json:"server,omitempty"`
	Draining bool      `json:"draining"`
	Seconds  float64   `json:"seconds"` // between the looks

	RowsPerSec     float64  `json:"rows_per_s"`
	BytesPerSec    float64  `json:"bytes_per_s"`
	StoreBytesPerS float64  `json:"store_bytes_per_s"`
	SpillBytesPerS float64  `json:"spill_bytes_per_s"`
	SpillShare     *float64 `json:"spill_share"`        // of bytes read; null of none
	StoreP50       int64    `json:"store_p50_us"`       // of the last seconds, like the next two
	StoreP95       int64    `json:"store_p95_us"`       //
	StoreP99       int64    `json:"store_p99_us"`       //
	SpillHeld      int64    `json:"spill_held_bytes"`   // of the disk
	SpillBudget    int64    `json:"spill_budget_bytes"` // 0 without a spill
	WindowUsed     int64    `json:"window_used_bytes"`  // that streams hold
	WindowLimit    int64    `json:"window_limit_bytes"` // that they may
	Lost           int64    `json:"lost"`               // blobs, since the server began, like the next four
	FailedReads    int64    `json:"failed_reads"`
	Hedges         int64    `json:"hedges"`
	Rows           int64    `json:"rows"`
	Bytes          int64    `json:"bytes"`
	ReadsInFlight  int      `json:"store_reads_in_flight"`
	BytesInFlight  int64    `json:"store_bytes_in_flight"`
	InFlightLimit  int64    `json:"store_in_flight_limit"`

	Jobs    []Job    `json:"jobs"`
	Streams []Stream `json:"streams"` // the busiest first
	Cache   []Cached `json:"cache"`   // by dataset
	Tenants []Tenant `json:"tenants"` // by name
	// SameNode is of memory that clients on the server's node share; nil where there is none.
	SameNode *SameNode `json:"samenode,omitempty"`
}

// SameNode is what goes to clients by memory that they share with the server.
type SameNode struct {
	Rings       int     `json:"rings"`
	Bytes       int64   `json:"bytes"` // of the rings
	Held        int64   `json:"held_bytes"`
	SentPerSec  float64 `json:"sent_bytes_per_s"`
	WaitsPerSec float64 `json:"waits_per_s"`  // batches that waited for room
	InlinePerS  float64 `json:"inline_per_s"` // that went by TCP for want of it
	Refused     int64   `json:"refused"`      // clients, since the server began
	Abandoned   int64   `json:"abandoned"`    // rings, likewise
	Pinned      int64   `json:"pinned_bytes"` // of blobs that clients read where they lie
	ReferPerSec float64 `json:"referred_bytes_per_s"`
	CopiedPerS  float64 `json:"copied_per_s"` // batches that were copied though they might have been referred to
}

// Tenant is what is done on an account.
type Tenant struct {
	Tenant      string   `json:"tenant"`
	Others      bool     `json:"others,omitempty"`
	Streams     int      `json:"streams"`
	RowsPerSec  float64  `json:"rows_per_s"`
	BytesPerSec float64  `json:"bytes_per_s"`
	Share       *float64 `json:"share"` // of the bytes of all; null of none
	Bytes       int64    `json:"bytes"` // since the server began
}

// Cached is what the spill has of a dataset, and what that gained.
type Cached struct {
	Dataset  string   `json:"dataset"`
	Bytes    int64    `json:"bytes"`
	Entries  int64    `json:"entries"`
	HitShare *float64 `json:"hit_share"` // of the reads since the server began; null of none
	Saved    int64    `json:"saved_bytes"`
	SavedS   float64  `json:"saved_s"` // in the store, at what its reads take
	Evicted  int64    `json:"evicted"`
}

// Between is what was between two looks at the server that target names.
func Between(target string, a, b *Look) *View {
	secs := max(b.At.Sub(a.At).Seconds(), 1e-3)
	perSec := func(n int64) float64 { return float64(max(n, 0)) / secs }
	from, to := &a.Stats.Engine, &b.Stats.Engine
	store, spill := to.ReadBytes-from.ReadBytes, to.SpillBytes-from.SpillBytes
	v := &View{
		At: b.At.UTC().Truncate(time.Millisecond), Server: target, Draining: b.Stats.Server.Draining, Seconds: secs,
		RowsPerSec:     perSec(b.Stats.Server.Rows - a.Stats.Server.Rows),
		BytesPerSec:    perSec(b.Stats.Server.Bytes - a.Stats.Server.Bytes),
		StoreBytesPerS: perSec(store), SpillBytesPerS: perSec(spill), SpillShare: Share(spill, store),
		StoreP50: to.Latency.P50, StoreP95: to.Latency.P95, StoreP99: to.Latency.P99,
		WindowUsed: to.WindowUsed, WindowLimit: to.WindowLimit, Lost: to.Lost, FailedReads: to.FailedReads,
		Hedges: to.Hedges,
		Rows:   b.Stats.Server.Rows, Bytes: b.Stats.Server.Bytes,
		ReadsInFlight: to.ReadsInFlight, BytesInFlight: to.BytesInFlight, InFlightLimit: to.InFlightLimit,
		Jobs: jobsOf(&a.Stats, &b.Stats, secs), Streams: streamsOf(a, b), Cache: cacheOf(&b.Stats),
		Tenants: tenantsOf(&a.Stats, &b.Stats, secs),
	}
	if s := to.Spill; s != nil {
		v.SpillHeld, v.SpillBudget = s.HeldBytes, s.BudgetBytes
	}
	if s := b.Stats.SameNode; s != nil {
		v.SameNode = &SameNode{Rings: s.Rings, Bytes: s.Bytes, Held: s.Held, Refused: s.Refused, Abandoned: s.Abandoned,
			Pinned: s.Pinned}
		if was := a.Stats.SameNode; was != nil {
			n := v.SameNode
			n.SentPerSec, n.WaitsPerSec, n.InlinePerS = perSec(s.Sent-was.Sent), perSec(s.Waits-was.Waits),
				perSec(s.Inline-was.Inline)
			n.ReferPerSec, n.CopiedPerS = perSec(s.Referred-was.Referred), perSec(s.Copied-was.Copied)
		}
	}
	return v
}

// Share is what a is of a and b together; nil of nothing.
func Share(a, b int64) *float64 {
	if a+b == 0 {
		return nil
	}
	share := float64(a) / float64(a+b)
	return &share
}
