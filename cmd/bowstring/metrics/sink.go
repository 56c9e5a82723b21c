package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bowstring/fetch"
	"bowstring/flight"
)

// sink takes the metrics of one scrape.
type sink chan<- prometheus.Metric

func (ch sink) send(m *metric, v float64, labels ...string) {
	one, err := prometheus.NewConstMetric(m.desc, m.kind, v, labels...)
	if err != nil {
		one = prometheus.NewInvalidMetric(m.desc, err)
	}
	ch <- one
}

func (ch sink) seconds(m *metric, nanos int64, labels ...string) {
	ch.send(m, time.Duration(nanos).Seconds(), labels...)
}

func (ch sink) truth(m *metric, is bool, labels ...string) {
	v := 0.0
	if is {
		v = 1
	}
	ch.send(m, v, labels...)
}

// at sends a time, 0 for none.
func (ch sink) at(m *metric, t time.Time, labels ...string) {
	v := 0.0
	if !t.IsZero() {
		v = float64(t.UnixMilli()) / 1e3
	}
	ch.send(m, v, labels...)
}

func (ch sink) server(st *flight.Stats) {
	s := &st.Server
	ch.truth(draining, s.Draining)
	kinds := map[string]int{"DoGet": 0, "DoPut": 0, "DoExchange": 0, "warm": 0}
	for _, one := range st.Streams {
		kinds[one.Kind]++
	}
	for kind, n := range kinds {
		ch.send(streamsNow, float64(n), kind)
	}
	ch.send(streamsLimit, float64(st.Limits.MaxStreams))
	ch.send(streamsTotal, float64(s.Streams))
	ch.seconds(streamSeconds, s.StreamNanos)
	ch.send(callsTotal, float64(s.Calls))
	ch.send(rowsTotal, float64(s.Rows))
	ch.send(bytesTotal, float64(s.Bytes))
	for source, nanos := range map[string]int64{
		"store": s.Wait.Store, "spill": s.Wait.Spill, "peer": s.Wait.Peer, "window": s.Wait.Window,
		"encode": s.Wait.Encode, "consumer": s.Wait.Consumer,
		"operators": s.Wait.Operators,
	} {
		ch.seconds(waitSeconds, nanos, source)
	}
	ch.send(faultsTotal, float64(s.Faults))
	for _, t := range st.Tenants {
		name := other
		if !t.Others {
			name = labelOf(t.Tenant)
		}
		ch.send(tenantStreams, float64(t.Streams), name)
		ch.send(tenantRows, float64(t.Rows), name)
		ch.send(tenantBytes, float64(t.Bytes), name)
		ch.send(tenantStored, float64(t.StoreBytes), name)
		ch.seconds(tenantMade, t.ProcessorNanos, name)
		ch.seconds(tenantSeconds, t.StreamNanos, name)
		ch.send(tenantRefused, float64(t.Refused), name)
	}
}

// sameNode is memory shared with clients on this node.
func (ch sink) sameNode(st *flight.Stats) {
	s := st.SameNode
	ch.send(ringsNow, float64(s.Rings))
	ch.send(ringBytes, float64(s.Bytes))
	ch.send(ringKept, float64(s.Kept))
	ch.send(ringHeld, float64(s.Held))
	ch.send(ringsGiven, float64(s.Given))
	ch.send(ringsRefused, float64(s.Refused))
	ch.send(ringSent, float64(s.Sent))
	ch.send(ringWaits, float64(s.Waits))
	ch.send(ringsLapsed, float64(s.Abandoned))
	ch.send(ringInline, float64(s.Inline))
	ch.send(ringPinned, float64(s.Pinned))
	ch.send(ringReferred, float64(s.Referred))
	ch.send(ringCopied, float64(s.Copied))
}

// uses are the labels of what admission.Use counts, in its order.
var uses = []string{"windows", "uploads", "evaluation", "answers", "manifests", "loans", "operators"}

// operators are those of the engine.
func (ch sink) operators(o *fetch.OperatorStats) {
	ch.send(cellsMade, float64(o.Cells))
	ch.send(cellsFaulty, float64(o.Faults))
	ch.send(programPanics, float64(o.Panics))
	ch.seconds(makingSeconds, o.Processor)
	ch.seconds(makingQueued, o.Queued)
	ch.send(prefixesKept, float64(o.PrefixesKept))
	ch.send(prefixesFound, float64(o.PrefixesFound))
	ch.send(prefixTrials, float64(o.PrefixTrials))
	ch.send(makingNow, float64(o.Running), "running")
	ch.send(makingNow, float64(o.Waiting), "waiting")
	ch.send(makingWorkers, float64(o.Workers))
}

func (ch sink) engine(e *fetch.Stats) {
	ch.operators(&e.Operators)
	ch.send(readBytes, float64(e.ReadBytes), "store")
	for _, reason := range fetch.ReadReasons() {
		ch.send(readReasons, float64(e.ReadReasons[reason]), reason)
	}
	ch.send(readBytes, float64(e.SpillBytes), "spill")
	ch.send(readBytes, float64(e.PeerBytes), "peer")
	ready := 0
	for _, w := range e.Windows {
		ready += w.Ready
	}
	for m, v := range map[*metric]int64{
		sharedReads: e.SharedReads, failedReads: e.FailedReads, retries: e.Retries, hedges: e.Hedges,
		hedgesWon: e.HedgesWon,
		givenUp:   e.GivenUp, lost: e.Lost, fills: e.Fills, readsInFlight: int64(e.ReadsInFlight),
		bytesInFlight: e.BytesInFlight,
		inFlightLimit: e.InFlightLimit, waitingRows: int64(ready), streamsReading: int64(len(e.Windows)),
		streamsWaiting: int64(e.Waiting), snapshotsOpen: int64(e.Snapshots),
		jobsNow: int64(len(e.Jobs)),
	} {
		ch.send(m, float64(v))
	}
	ch.seconds(pathLatency, e.Path.MinLatency*int64(time.Microsecond))
	ch.send(pathRate, e.Path.BytesPerSec)
	for i, a := range e.Memory {
		use := a.Use
		if i < len(uses) {
			use = uses[i]
		}
		ch.send(memoryUsed, float64(a.Used), use)
		ch.send(memoryLimit, float64(a.Limit), use)
		ch.send(memoryMost, float64(a.Most), use)
		ch.send(memoryWaiting, float64(a.Waiting), use)
	}
}

func (ch sink) store(st *flight.Stats) {
	for m, v := range map[*metric]int64{
		storeReads: st.Store.BlobReads, storeBytes: st.Store.BlobBytes, storeWrites: st.Store.BlobWrites,
		storeDedups:  st.Store.BlobDedups,
		storeWritten: st.Store.WrittenBytes, storeBlobs: st.Store.Blobs, storeStored: st.Store.StoredBytes,
	} {
		ch.send(m, float64(v))
	}
}

func progress(j *fetch.JobStats) float64 { return float64(j.Row) / float64(max(j.Rows, 1)) }

func (ch sink) spill(s *fetch.SpillStats) {
	for m, v := range map[*metric]int64{
		spillBudget: s.BudgetBytes, spillHeld: s.HeldBytes, spillAbroad: s.ElsewhereBytes, spillBlobs: s.Entries, spillFiles: int64(s.Segments),
		spillBypassed: s.Bypassed, spillWritten: s.WrittenBytes, spillMoved: s.MovedBytes,
		spillUnnamed: s.Unnamed,
	} {
		ch.send(m, float64(v))
	}
	for kind, n := range map[string]int64{
		"read": s.ReadErrors, "write": s.WriteErrors, "damaged": s.Damaged, "disk_full": s.DiskFull, "busy": s.Busy,
	} {
		ch.send(spillErrors, float64(n), kind)
	}
	ch.truth(spillLost, s.IndexLost)
}
