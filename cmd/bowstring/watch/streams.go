package watch

import (
	"cmp"
	"slices"
	"time"

	"bowstring/flight"
)

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
