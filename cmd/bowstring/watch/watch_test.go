package watch_test

import (
	"math"
	"testing"
	"time"

	"bowstring/cmd/bowstring/watch"
	"bowstring/fetch"
	"bowstring/flight"
	"bowstring/flight/shm"
	"bowstring/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// Shares are of the time between two looks, and what is predicted goes by it.
func TestBetween(t *testing.T) {
	from := time.Now()
	to := from.Add(2 * time.Second)
	second := int64(time.Second)
	before := flight.Stats{
		Engine: fetch.Stats{Windows: []fetch.WindowStats{{Job: "p", Dataset: "d@1", Step: 10, Steps: 100},
			{Job: "p", Dataset: "d@1", Step: 20, Steps: 100, Rank: 1}}},
		Streams: []flight.StreamInfo{{ID: 1, Plan: "p", Started: from.Add(-time.Hour), Bytes: 1000,
			Wait: flight.WaitNanos{Store: 50 * second}}},
	}
	after := flight.Stats{
		Engine: fetch.Stats{
			Windows: []fetch.WindowStats{{Job: "p", Dataset: "d@1", Step: 20, Steps: 100},
				{Job: "p", Dataset: "d@1", Step: 40, Steps: 100, Rank: 1}},
			Jobs: []fetch.JobStats{{Job: "j", Dataset: "e@1", Streams: 1, Row: 25, Rows: 100, RowTime: second,
				SpillReads: 1, StoreReads: 3}},
		},
		Streams: []flight.StreamInfo{
			{ID: 1, Plan: "p", Started: from.Add(-time.Hour), Bytes: 3000,
				Wait: flight.WaitNanos{Store: 51 * second, Consumer: second / 2}},
			{ID: 2, Started: to.Add(-time.Second), Bytes: 5000, Wait: flight.WaitNanos{Consumer: second / 2}},
		},
	}
	v := watch.Between("here", &watch.Observation{At: from, Stats: before}, &watch.Observation{At: to, Stats: after})
	if len(v.Streams) != 2 || v.Streams[0].ID != 2 || v.Streams[0].BytesPerSec != 5000 ||
		v.Streams[0].Limit != "consumer" || v.Streams[0].Consumer != 0.5 {
		t.Errorf("a stream that began meanwhile: %+v", v.Streams)
	}
	if s := v.Streams[1]; s.Store != 0.5 || s.Consumer != 0.25 || s.Limit != "store" || s.BytesPerSec != 1000 ||
		s.Dataset != "d@1" {
		t.Errorf("a stream that went on: %+v", s)
	}
	if len(v.Jobs) != 2 || *v.Jobs[0].LeftSecs != 75 || *v.Jobs[0].SpillShare != 0.25 {
		t.Errorf("a job that the spill knows: %+v", v.Jobs)
	}
	// The slower rank did a tenth in two seconds, and has eight to go.
	if j := v.Jobs[1]; j.Streams != 2 || j.Progress != 0.2 || j.LeftSecs == nil || *j.LeftSecs < 15.9 ||
		*j.LeftSecs > 16.1 {
		t.Errorf("a job by its streams: %+v", j)
	}
}

// The time that sending took is the network's as far as the kernel had bytes on their way,
// and the consumer's otherwise.
func TestNetwork(t *testing.T) {
	from := time.Now()
	to := from.Add(time.Second)
	observe := func(at time.Time, consumer, sending, held time.Duration) *watch.Observation {
		return &watch.Observation{
			At: at, More: []flight.StreamMore{{Dataset: "d", Sending: sending, Held: held}},
			Stats: flight.Stats{Streams: []flight.StreamInfo{{ID: 1, Started: from.Add(-time.Hour),
				Wait: flight.WaitNanos{Consumer: int64(consumer)}}}},
		}
	}
	for _, tt := range []struct {
		sending, held     time.Duration
		network, consumer float64
		limit             string
	}{
		{0, 0, 0, 0.8, "consumer"},
		{600 * time.Millisecond, 0, 0.6, 0.2, "network"},
		{time.Second, 900 * time.Millisecond, 0.1, 0.7, "consumer"},
		{time.Second, 0, 0.8, 0, "network"}, // others send by the same connection
	} {
		v := watch.Between("", observe(from, 0, 0, 0), observe(to, 800*time.Millisecond, tt.sending, tt.held))
		s := v.Streams[0]
		if math.Abs(s.Network-tt.network) > 1e-9 || math.Abs(s.Consumer-tt.consumer) > 1e-9 || s.Limit != tt.limit ||
			s.Dataset != "d" {
			t.Errorf("sending %s, held %s: %+v", tt.sending, tt.held, s)
		}
	}
}

// The spill saved what its blobs would have taken in the store, and shares of
// tenants are of what all got meanwhile.
func TestCacheAndTenants(t *testing.T) {
	from := time.Now()
	before := flight.Stats{Tenants: []flight.TenantInfo{{Tenant: "a", Bytes: 100}, {Tenant: "b", Bytes: 100}}}
	after := flight.Stats{
		Engine: fetch.Stats{Reads: 10, ReadNanos: int64(time.Second),
			Spill: &fetch.SpillStats{Datasets: map[string]fetch.SpillDataset{
				"d@1": {Hits: 30, Misses: 10, HitBytes: 3000, Bytes: 500, Entries: 5},
			}}},
		Tenants: []flight.TenantInfo{{Tenant: "a", Bytes: 400}, {Tenant: "b", Bytes: 200}, {Others: true, Bytes: 7}},
	}
	v := watch.Between("", &watch.Observation{At: from, Stats: before},
		&watch.Observation{At: from.Add(2 * time.Second), Stats: after})
	if c := v.Cache; len(c) != 1 || *c[0].HitShare != 0.75 || c[0].Saved != 3000 || math.Abs(c[0].SavedS-3) > 1e-9 {
		t.Errorf("cache: %+v", c)
	}
	if l := v.Tenants; len(l) != 3 || *l[0].Share != 0.75 || l[0].BytesPerSec != 150 || *l[1].Share != 0.25 ||
		l[2].Share != nil {
		t.Errorf("tenants: %+v", l)
	}
}

// Rings are shown as they are, and what went by them as rates; who shares no memory shows none.
func TestSharedMemory(t *testing.T) {
	from := time.Now()
	observe := func(at time.Duration, n int64) *watch.Observation {
		return &watch.Observation{At: from.Add(at), Stats: flight.Stats{Shm: &shm.Stats{Rings: 2, Bytes: 64, Held: 7,
			Sent: 100 * n, Waits: 2 * n, Inline: n, Refused: 3, Abandoned: 1, Pinned: 5, Referred: 20 * n, Copied: 4 * n}}}
	}
	want := watch.SharedMemory{Rings: 2, Bytes: 64, Held: 7, SentPerSec: 150, WaitsPerSec: 3, InlinePerS: 1.5, Refused: 3,
		Abandoned: 1, Pinned: 5, ReferPerSec: 30, CopiedPerS: 6}
	if v := watch.Between("", observe(0, 1), observe(2*time.Second, 4)); v.SharedMemory == nil || *v.SharedMemory != want {
		t.Errorf("got %+v, want %+v", v.SharedMemory, want)
	}
	if v := watch.Between("", &watch.Observation{At: from}, &watch.Observation{At: from.Add(time.Second)}); v.SharedMemory != nil {
		t.Errorf("got %+v of a server that shares nothing", v.SharedMemory)
	}
}
