// Package watch computes what happened between two observations of a server: rates,
// shares of time, progress and the time that is left. bowstring top prints the result and
// the console draws it, so that both show the same. It computes from the server's
// statistics alone: it sends no request, keeps no state and reads no clock. All functions
// are pure, and safe for concurrent use.
//
// Begin reading at [Between]. The JSON of [View] is what top --json prints and what the
// console's page reads, so that its field names are an interface.
package watch

import (
	"cmp"
	"slices"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/object"
	"bowstring/flight"
)

// Observation is the statistics of a server at a moment. The functions of this package
// only read it, and no result refers to its memory, strings aside.
type Observation struct {
	At    time.Time
	Stats flight.Stats
	More  []flight.StreamMore // by stream, in the order of Stats.Streams; nil if unknown
}

// View is the difference of two observations. Rates are per second, shares are of 1.
type View struct {
	At       time.Time `json:"at"`
	Server   string    `json:"server,omitempty"`
	Draining bool      `json:"draining"`
	Seconds  float64   `json:"seconds"` // between the observations

	RowsPerSec     float64  `json:"rows_per_s"`
	BytesPerSec    float64  `json:"bytes_per_s"`
	StoreBytesPerS float64  `json:"store_bytes_per_s"`
	SpillBytesPerS float64  `json:"spill_bytes_per_s"`
	SpillShare     *float64 `json:"spill_share"`        // of the bytes read; null if none were
	StoreP50       int64    `json:"store_p50_us"`       // of the last seconds, like the next two
	StoreP95       int64    `json:"store_p95_us"`       //
	StoreP99       int64    `json:"store_p99_us"`       //
	SpillHeld      int64    `json:"spill_held_bytes"`   // of the disk
	SpillBudget    int64    `json:"spill_budget_bytes"` // 0 without a spill
	WindowUsed     int64    `json:"window_used_bytes"`  // bytes that streams hold
	WindowLimit    int64    `json:"window_limit_bytes"` // bytes that they may hold
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
	// SharedMemory is the memory that clients on the server's machine share; nil if there is none.
	SharedMemory *SharedMemory `json:"shm,omitempty"`
}

// Bucket is the traffic with a bucket. Counters without a rate are since the server
// began.
type Bucket struct {
	Bucket      string       `json:"bucket"` // its URL
	Requests    int64        `json:"requests"`
	PerSec      float64      `json:"requests_per_s"`
	BytesPerSec float64      `json:"bytes_per_s"` // read and written
	Errors      int64        `json:"errors"`
	Throttled   int64        `json:"throttled"`
	Waiting     int          `json:"waiting"`           // requests that wait for the limit
	Limit       float64      `json:"limit_per_s"`       // the lowest of its limits; 0 if it has none
	FirstP99    int64        `json:"first_byte_p99_us"` // since the server began
	Cost        object.Money `json:"cost_usd"`
	Priced      string       `json:"priced,omitempty"`
}

// bucketsOf lists the buckets of the second observation, in its order. A bucket that the
// first one lacks counts from zero. A bucket that has many limits shows the lowest: it is
// the one at which requests wait.
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

// SharedMemory is the traffic of memory that clients share with the server. Rates are
// between the observations.
type SharedMemory struct {
	Rings       int     `json:"rings"`
	Bytes       int64   `json:"bytes"` // of the rings
	Held        int64   `json:"held_bytes"`
	SentPerSec  float64 `json:"sent_bytes_per_s"`
	WaitsPerSec float64 `json:"waits_per_s"`  // batches that waited for free space
	InlinePerS  float64 `json:"inline_per_s"` // batches that went by TCP because there was no space
	Refused     int64   `json:"refused"`      // clients, since the server began
	Abandoned   int64   `json:"abandoned"`    // rings, since the server began
	Pinned      int64   `json:"pinned_bytes"` // of blobs that clients read in place
	ReferPerSec float64 `json:"referred_bytes_per_s"`
	CopiedPerS  float64 `json:"copied_per_s"` // batches that were copied although references would have been possible
}

// Tenant is the usage charged to a tenant.
type Tenant struct {
	Tenant      string   `json:"tenant"`
	Others      bool     `json:"others,omitempty"` // the sum of the tenants that have no entry of their own
	Streams     int      `json:"streams"`
	RowsPerSec  float64  `json:"rows_per_s"`
	BytesPerSec float64  `json:"bytes_per_s"`
	Share       *float64 `json:"share"` // of the bytes of all tenants; null if there were none
	Bytes       int64    `json:"bytes"` // since the server began
}

// Cached is the part of the spill that belongs to a dataset, and what it saved.
type Cached struct {
	Dataset  string   `json:"dataset"`
	Bytes    int64    `json:"bytes"`
	Entries  int64    `json:"entries"`
	HitShare *float64 `json:"hit_share"` // of the reads since the server began; null if there were none
	Saved    int64    `json:"saved_bytes"`
	SavedS   float64  `json:"saved_s"` // time in the store, at the mean of its reads
	Evicted  int64    `json:"evicted"`
}

// Between returns the difference of two observations, a before b, of the server at
// target. Both must be of one run of the server: counters that fell count as no change.
func Between(target string, a, b *Observation) *View {
	// Observations at the same moment would divide by zero. A millisecond is below any
	// interval that a viewer uses.
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
	// A server without a spill or without shared memory has nil here. The budget then
	// stays 0, and the view has no shm object.
	if s := to.Spill; s != nil {
		v.SpillHeld, v.SpillBudget = s.HeldBytes, s.BudgetBytes
	}
	if s := b.Stats.Shm; s != nil {
		v.SharedMemory = &SharedMemory{Rings: s.Rings, Bytes: s.Bytes, Held: s.Held, Refused: s.Refused,
			Abandoned: s.Abandoned, Pinned: s.Pinned}
		if was := a.Stats.Shm; was != nil {
			n := v.SharedMemory
			n.SentPerSec, n.WaitsPerSec, n.InlinePerS = perSec(s.Sent-was.Sent), perSec(s.Waits-was.Waits),
				perSec(s.Inline-was.Inline)
			n.ReferPerSec, n.CopiedPerS = perSec(s.Referred-was.Referred), perSec(s.Copied-was.Copied)
		}
	}
	return v
}

// Share returns a / (a + b). It returns nil if both are 0: there is no share of nothing,
// and 0 % would look like a cache that misses.
func Share(a, b int64) *float64 {
	if a+b == 0 {
		return nil
	}
	share := float64(a) / float64(a+b)
	return &share
}

// Stream is a stream and the shares of its time between the observations, or since it
// began if that was later.
type Stream struct {
	ID          uint64  `json:"id"`
	Kind        string  `json:"kind"`
	Plan        string  `json:"plan,omitempty"`
	Dataset     string  `json:"dataset,omitempty"`
	Tenant      string  `json:"tenant,omitempty"`
	Peer        string  `json:"peer"`
	Seconds     float64 `json:"seconds"` // since it began
	Rows        int64   `json:"rows"`    // since it began
	RowsPerSec  float64 `json:"rows_per_s"`
	BytesPerSec float64 `json:"bytes_per_s"`
	Store       float64 `json:"store"`
	Spill       float64 `json:"spill"`
	Nodes       float64 `json:"nodes"`  // reads from other nodes
	Window      float64 `json:"window"` // the window was full: the consumer is slower
	Encode      float64 `json:"encode"`
	Operators   float64 `json:"operators,omitempty"` // samples in the making
	// Network is the time in which bytes were on their way, as far as the kernel shows:
	// the rest of the time of sending is Consumer's. top has no such figures, and counts
	// all of it as Consumer.
	Network  float64 `json:"network,omitempty"`
	Consumer float64 `json:"consumer"`
	Limit    string  `json:"limit"` // the largest share of its time: one of the above, or -
}

// streamsOf lists the streams of the second observation, the busiest first. A stream that
// began between the observations is measured since it began. Streams that have ended
// since the first observation are left out.
func streamsOf(a, b *Observation) []Stream {
	// A stream names its plan only. The engine's windows know the dataset of each plan.
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
		// A batch's wait is counted when it ends. A wait that began before the interval
		// can therefore exceed the interval, and the share is limited to 1.
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
			// Bytes in flight have left the server and the client has not confirmed them.
			// Their time is that of sending without the time in which the client's buffer
			// was full.
			if known && at < len(a.More) {
				moving := b.More[i].Sending - a.More[at].Sending - (b.More[i].Held - a.More[at].Held)
				one.Network = min(share(int64(moving), 0), one.Consumer)
				one.Consumer -= one.Network
			}
		}
		one.Limit = one.limit()
		list = append(list, one)
	}
	// Equal streams are ordered by their number. Otherwise lines would swap places at
	// each refresh.
	slices.SortStableFunc(list, func(a, b Stream) int {
		return cmp.Or(cmp.Compare(b.BytesPerSec, a.BytesPerSec), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// limit returns the name of the largest share of the time. A stream without any progress
// has none, and gets "-".
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

// Job is the streams of one plan, or the streams that the spill counts as one job.
type Job struct {
	Job        string   `json:"job"`
	Dataset    string   `json:"dataset"`
	Streams    int      `json:"streams"`
	Epoch      uint64   `json:"epoch"`
	Progress   float64  `json:"progress"`     // share of the epoch
	LeftSecs   *float64 `json:"epoch_left_s"` // null if it is unknown yet
	SpillShare *float64 `json:"spill_share"`  // of its blobs; null without a spill
	SavedS     float64  `json:"saved_s"`      // time in the store that the spill saved
}

// jobsOf lists the jobs that the spill knows, and then the other streams, grouped by
// plan. For a job of the spill the remaining time comes from the spill, because its speed
// is measured over many steps. For other streams it comes from the progress between the
// two observations alone.
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
	// A plan that made no progress has no estimate: null, instead of infinity, which JSON
	// lacks.
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

// plans groups streams by plan. The progress of a group is that of its slowest stream:
// the job's ranks wait for each other.
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

// cacheOf lists the contents of the spill by dataset. The dataset that saved most bytes
// comes first. The saved time is an estimate: each hit counts as one mean read of the
// store.
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

// tenantsOf lists the usage charged to each tenant, in the order of the server.
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
		// The others have no rate. A tenant can become part of them between the
		// observations, and then the difference of the two sums is not what they
		// transferred.
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
