package read

import "time"

// counters are guarded by Reader.mu.
type counters struct {
	reads, readBytes, readNanos, failedReads int64
	upperReads, upperBytes                   int64
	peerReads, peerBytes, stoodIn            int64
	sharedReads, retries, hedges, hedgesWon  int64
	fills                                    int64
	lost, givenUp                            int64
	reasons                                  Reasons
}

// Stats are a reader's counters since it was made, and what is in flight now.
type Stats struct {
	Reads       int64         // blobs read from the last tier and found right
	Reasons     Reasons       // of those, why they were made
	ReadBytes   int64         // of those
	ReadTime    time.Duration // summed over those
	FailedReads int64         // attempts at the last tier that brought no blob, or a wrong one
	UpperReads  int64         // blobs found in a tier of this node above and right
	UpperBytes  int64         // of those
	PeerReads   int64         // blobs that other nodes had, and right
	PeerBytes   int64         // of those
	StoodIn     int64         // blobs read from the last tier that are for other nodes to keep
	SharedReads int64         // wants that came with a read made for another, or from what was held
	Retries     int64         // attempts after one that failed or was silent for long
	Hedges      int64         // attempts beside one that was slow
	HedgesWon   int64         // of those, which brought the blob first
	Fills       int64         // reads begun by Fill
	GivenUp     int64         // blobs that no attempt brought
	Lost        int64         // of those, which are missing or damaged

	InFlight      int           // reads of the last tier
	BytesInFlight int64         // with what each read costs beside
	Limit         int64         // bytes that may be in flight, as the way was measured
	MinLatency    time.Duration // of the way
	BytesPerSec   float64       // that it carries, as a moving average
	Held          int           // blobs that windows hold, or that are being read

	// Quantiles of the latency of the last tier, of the last five to ten seconds;
	// zero where there were too few reads.
	P50, P95, P99, Max time.Duration
}

// Stats returns the reader's counters.
func (r *Reader) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetFreedLocked()
	c, f := &r.stats, &r.last.flow
	s := Stats{
		Reads: c.reads, Reasons: c.reasons, ReadBytes: c.readBytes, ReadTime: time.Duration(c.readNanos),
		FailedReads: c.failedReads,
		UpperReads:  c.upperReads, UpperBytes: c.upperBytes, PeerReads: c.peerReads, PeerBytes: c.peerBytes,
		StoodIn: c.stoodIn, SharedReads: c.sharedReads,
		Retries: c.retries, Hedges: c.hedges, HedgesWon: c.hedgesWon, Fills: c.fills, GivenUp: c.givenUp, Lost: c.lost,
		InFlight: f.reads, BytesInFlight: f.used, Limit: f.limit, MinLatency: f.latency, BytesPerSec: f.rate,
		Held: len(r.reads), Max: r.latency.greatest(),
	}
	s.P50, _ = r.latency.quantile(0.5)
	s.P95, _ = r.latency.quantile(0.95)
	s.P99, _ = r.latency.quantile(0.99)
	return s
}

// From is where a blob came from.
type From int

// Where blobs come from.
const (
	FromWindow From = iota // of another stream
	FromSpill              // a tier of this node
	FromPeer               // another node
	FromStore
)

// From says where an outcome came from.
func (r *Reader) From(o *Outcome) From {
	switch {
	case o.Tier == InWindow:
		return FromWindow
	case o.Tier == r.last.index:
		return FromStore
	case r.lanes[o.Tier].traits.Remote:
		return FromPeer
	}
	return FromSpill
}

// Path says what the way to the last tier is like: how long a slow read takes,
// the least latency, and how many bytes may be in flight.
type Path struct {
	Slow, Latency time.Duration
	Limit         int64
}

// Path returns what was measured of the way to the last tier.
func (r *Reader) Path() Path {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Path{r.slow, r.last.flow.latency, r.last.flow.limit}
}

// Far reports whether the last tier does not answer at once.
func (p Path) Far() bool { return p.Latency >= manyLatency }
