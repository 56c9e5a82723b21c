// Package watch says what went on between two looks at a server: rates, shares of time,
// progress and when it will be over. bowstring top prints it, the console draws it, so that
// both say the same. It computes from the server's statistics alone: it asks nobody, keeps
// nothing and has no clock of its own.
package watch

import (
	"cmp"
	"slices"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/object"
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
	Buckets []Bucket `json:"buckets"` // by URL
	// SameNode is of memory that clients on the server's node share; nil where there is none.
	SameNode *SameNode `json:"samenode,omitempty"`
}

// Bucket is what is asked of a bucket.
type Bucket struct {
	Bucket      string       `json:"bucket"` // its URL
	Requests    int64        `json:"requests"`
	PerSec      float64      `json:"requests_per_s"`
	BytesPerSec float64      `json:"bytes_per_s"` // read and written
	Errors      int64        `json:"errors"`
	Throttled   int64        `json:"throttled"`
	Waiting     int          `json:"waiting"`           // requests, for their turn
	Limit       float64      `json:"limit_per_s"`       // the lowest of its limits; 0 where there is none
	FirstP99    int64        `json:"first_byte_p99_us"` // since the server began
	Cost        object.Money `json:"cost_usd"`
	Priced      string       `json:"priced,omitempty"`
}

func bucketsOf(a, b *flight.Stats, secs float64) []Bucket {
	before := make(map[string]*object.Usage, len(a.Objects))
	for i := range a.Objects {
		before[a.Objects[i].Bucket] = &a.Objects[i]
	}
	list := make([]Bucket, 0, len(b.Objects))
	for i := range b.Objects {
		u := &b.Objects[i]
		was := before[u.Bucket]
		if was == nil {
			was = &object.Usage{}
		}
		one := Bucket{Bucket: u.Bucket, Requests: u.Requests(), Errors: u.Errors, Throttled: u.Throttled,
			PerSec:      float64(max(u.Requests()-was.Requests(), 0)) / secs,
			BytesPerSec: float64(max(u.BytesIn+u.BytesOut-was.BytesIn-was.BytesOut, 0)) / secs,
			FirstP99:    u.FirstP99, Cost: u.Cost.Total, Priced: u.Priced}
		for _, l := range u.Limits {
			one.Waiting += l.Waiting
			if l.PerSecond > 0 && (one.Limit == 0 || l.PerSecond < one.Limit) {
				one.Limit = l.PerSecond
			}
		}
		list = append(list, one)
	}
	return list
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
		Tenants: tenantsOf(&a.Stats, &b.Stats, secs), Buckets: bucketsOf(&a.Stats, &b.Stats, secs),
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

// Stream is a stream and the shares of its time, since it began where it is new and
// otherwise between the looks.
type Stream struct {
	ID          uint64  `json:"id"`
	Kind        string  `json:"kind"`
	Plan        string  `json:"plan,omitempty"`
	Dataset     string  `json:"dataset,omitempty"`
	Tenant      string  `json:"tenant,omitempty"`
	Peer        string  `json:"peer"`
	Seconds     float64 `json:"seconds"` // since it began
	Rows        int64   `json:"rows"`    // likewise
	RowsPerSec  float64 `json:"rows_per_s"`
	BytesPerSec float64 `json:"bytes_per_s"`
	Store       float64 `json:"store"`
	Spill       float64 `json:"spill"`
	Nodes       float64 `json:"nodes"`  // reads from other nodes
	Window      float64 `json:"window"` // reads that were made for other streams
	Encode      float64 `json:"encode"`
	Operators   float64 `json:"operators,omitempty"` // samples that were being made
	// Network is where bytes were on their way, as far as the kernel tells: what is left
	// of the time that sending took is Consumer's. top is not told, and has it all there.
	Network  float64 `json:"network,omitempty"`
	Consumer float64 `json:"consumer"`
	Limit    string  `json:"limit"` // where most of its time goes: one of the above, or -
}

// streamsOf lists the streams of a look, the busiest first.
func streamsOf(a, b *Look) []Stream {
	datasets := map[string]string{}
	for i := range b.Stats.Engine.Windows {
		w := &b.Stats.Engine.Windows[i]
		datasets[w.Job] = w.Dataset
	}
	before := map[uint64]int{}
	for i := range a.Stats.Streams {
		before[a.Stats.Streams[i].ID] = i
	}
	list := make([]Stream, 0, len(b.Stats.Streams))
	for i := range b.Stats.Streams {
		s := &b.Stats.Streams[i]
		past, since := &flight.StreamInfo{}, max(min(b.At.Sub(s.Started), b.At.Sub(a.At)), time.Millisecond)
		at, known := before[s.ID]
		if known {
			past, since = &a.Stats.Streams[at], max(b.At.Sub(a.At), time.Millisecond)
		}
		share := func(now, then int64) float64 { return min(float64(max(now-then, 0))/float64(since), 1) }
		one := Stream{
			ID: s.ID, Kind: s.Kind, Plan: s.Plan, Dataset: datasets[s.Plan], Tenant: s.Tenant, Peer: s.Peer,
			Seconds: b.At.Sub(s.Started).Seconds(), Rows: s.Rows,
			RowsPerSec:  float64(s.Rows-past.Rows) / since.Seconds(),
			BytesPerSec: float64(s.Bytes-past.Bytes) / since.Seconds(),
			Store:       share(s.Wait.Store, past.Wait.Store), Spill: share(s.Wait.Spill, past.Wait.Spill),
			Window: share(s.Wait.Window, past.Wait.Window),
			Nodes:  share(s.Wait.Peer, past.Wait.Peer),
			Encode: share(s.Wait.Encode, past.Wait.Encode), Consumer: share(s.Wait.Consumer, past.Wait.Consumer),
			Operators: share(s.Wait.Operators, past.Wait.Operators),
		}
		if i < len(b.More) {
			if one.Dataset == "" {
				one.Dataset = b.More[i].Dataset
			}
			if known && at < len(a.More) {
				moving := b.More[i].Sending - a.More[at].Sending - (b.More[i].Held - a.More[at].Held)
				one.Network = min(share(int64(moving), 0), one.Consumer)
				one.Consumer -= one.Network
			}
		}
		one.Limit = one.limit()
		list = append(list, one)
	}
	slices.SortStableFunc(list, func(a, b Stream) int {
		return cmp.Or(cmp.Compare(b.BytesPerSec, a.BytesPerSec), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// limit is where most of the time goes; a stream that stands still has said nothing of
// where.
func (s *Stream) limit() string {
	most, name := 0.0, "-"
	for _, part := range []struct {
		name  string
		share float64
	}{{"store", s.Store}, {"spill", s.Spill}, {"nodes", s.Nodes}, {"window", s.Window}, {"encode", s.Encode},
		{"operators", s.Operators}, {"network", s.Network}, {"consumer", s.Consumer}} {
		if part.share > most {
			most, name = part.share, part.name
		}
	}
	return name
}

// Job is a job: of the streams of one plan, or of those that the spill has together.
type Job struct {
	Job        string   `json:"job"`
	Dataset    string   `json:"dataset"`
	Streams    int      `json:"streams"`
	Epoch      uint64   `json:"epoch"`
	Progress   float64  `json:"progress"`     // share of the epoch
	LeftSecs   *float64 `json:"epoch_left_s"` // null where it cannot be said yet
	SpillShare *float64 `json:"spill_share"`  // of its blobs; null without a spill
	SavedS     float64  `json:"saved_s"`      // in the store, by the spill
}

// jobsOf lists the jobs that the spill knows, and of the other streams those of one plan together.
func jobsOf(a, b *flight.Stats, secs float64) []Job {
	list := []Job{}
	known := map[string]bool{}
	for i := range b.Engine.Jobs {
		j := &b.Engine.Jobs[i]
		known[j.Dataset] = true
		one := Job{
			Job: j.Job, Dataset: j.Dataset, Streams: j.Streams, Epoch: j.Epoch,
			Progress:   float64(j.Row) / float64(max(j.Rows, 1)),
			SpillShare: Share(j.SpillReads, j.StoreReads+j.WindowReads),
		}
		one.SavedS = time.Duration(j.SavedNanos).Seconds()
		if j.RowTime > 0 && j.Streams > 0 {
			left := time.Duration((j.Rows - j.Row) * j.RowTime).Seconds()
			one.LeftSecs = &left
		}
		list = append(list, one)
	}
	before := map[string]float64{}
	for _, j := range plans(a.Engine.Windows) {
		before[j.Job] = j.Progress
	}
	for _, j := range plans(b.Engine.Windows) {
		if known[j.Dataset] {
			continue
		}
		if past, ok := before[j.Job]; ok && j.Progress > past {
			left := (1 - j.Progress) / (j.Progress - past) * secs
			j.LeftSecs = &left
		}
		list = append(list, j)
	}
	return list
}

// plans are the streams of one plan together, which are as far as the one that is least far.
func plans(windows []fetch.WindowStats) []Job {
	var list []Job
	for _, w := range windows {
		if w.Steps == 0 {
			continue
		}
		at := float64(w.Step) / float64(w.Steps)
		if i := slices.IndexFunc(list, func(j Job) bool { return j.Job == w.Job && j.Epoch == w.Epoch }); i >= 0 {
			list[i].Streams++
			list[i].Progress = min(list[i].Progress, at)
			continue
		}
		list = append(list, Job{Job: w.Job, Dataset: w.Dataset, Streams: 1, Epoch: w.Epoch, Progress: at})
	}
	return list
}

// cacheOf is what the spill holds, by dataset.
func cacheOf(st *flight.Stats) []Cached {
	list := []Cached{}
	if st.Engine.Spill == nil {
		return list
	}
	var read float64 // from the store, in seconds
	if st.Engine.Reads > 0 {
		read = time.Duration(st.Engine.ReadNanos).Seconds() / float64(st.Engine.Reads)
	}
	for name, d := range st.Engine.Spill.Datasets {
		list = append(list, Cached{
			Dataset: name, Bytes: d.Bytes, Entries: d.Entries, HitShare: Share(d.Hits, d.Misses),
			Saved: d.HitBytes, SavedS: float64(d.Hits) * read, Evicted: d.Evicted,
		})
	}
	slices.SortFunc(list, func(a, b Cached) int {
		return cmp.Or(cmp.Compare(b.Saved, a.Saved), cmp.Compare(a.Dataset, b.Dataset))
	})
	return list
}

// tenantsOf is what was done on each account.
func tenantsOf(a, b *flight.Stats, secs float64) []Tenant {
	before := map[string]*flight.TenantInfo{}
	for i := range a.Tenants {
		if !a.Tenants[i].Others {
			before[a.Tenants[i].Tenant] = &a.Tenants[i]
		}
	}
	list, sum := []Tenant{}, 0.0
	for i := range b.Tenants {
		t := &b.Tenants[i]
		one := Tenant{Tenant: t.Tenant, Others: t.Others, Streams: t.Streams, Bytes: t.Bytes}
		// What the others did in the meantime is not known: tenants become part of them.
		if past := before[t.Tenant]; !t.Others && past != nil {
			one.RowsPerSec, one.BytesPerSec = float64(max(t.Rows-past.Rows, 0))/secs,
				float64(max(t.Bytes-past.Bytes, 0))/secs
		}
		sum += one.BytesPerSec
		list = append(list, one)
	}
	for i := range list {
		if t := &list[i]; sum > 0 && !t.Others {
			share := t.BytesPerSec / sum
			t.Share = &share
		}
	}
	return list
}
