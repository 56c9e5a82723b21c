package main

import (
	"encoding/json"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
)

// warmUp is the beginning of a measurement that the steady rate leaves out. In it
// connections open their windows and caches are empty. 5 s is long enough for slow start
// at hundreds of milliseconds of latency.
const warmUp = 5 * time.Second

// meter counts what streams receive. The goroutines of all streams and the goroutine that
// reports use it at once; mu guards everything below it. It holds no memory of batches.
type meter struct {
	// These fields are constant after newMeter. before is the server's counters at the
	// start: the server may have served others, so that all of its figures are
	// differences.
	start    time.Time
	perEpoch int64 // rows of an epoch
	epochs   int64
	before   stats

	mu sync.Mutex
	// now is the last answer to stats, and count is the sum so far.
	now   stats
	count counts
	// The times are since the start, and 0 for an event that has not occurred.
	ended  time.Duration
	first  time.Duration // when the first batch had arrived
	steady counts        // the count at steadyT
	// steadyT is when the first batch after the warm-up arrived.
	steadyT time.Duration
	// step and epoch are those of the last batch of any stream.
	step    int64
	epoch   uint64
	byEpoch map[uint64]int64 // rows
	seen    map[uint64]*seenRows
	last    counts // the count at the last sample
	// lastT is the time of the last sample.
	lastT time.Duration
}

// counts are sums since the start of the measurement.
type counts struct {
	bytes, rows, batches, faults int64
	wait                         waits
	waited                       time.Duration // for batches, by all consumers
}

// newMeter starts the clock of a measurement.
func newMeter(perEpoch, epochs int64, before stats) *meter {
	return &meter{
		start: time.Now(), perEpoch: perEpoch, epochs: epochs, before: before, now: before,
		byEpoch: map[uint64]int64{}, seen: map[uint64]*seenRows{},
	}
}

// wanted is the number of rows that a complete measurement reads.
func (m *meter) wanted() int64 { return m.perEpoch * m.epochs }

// batch counts a batch for which a consumer waited for the given time.
func (m *meter) batch(about batchAbout, rows, bytes int64, waited time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := time.Since(m.start)
	if m.count.batches == 0 {
		m.first = t
	}
	m.count.batches++
	m.count.rows += rows
	m.count.bytes += bytes
	m.count.faults += int64(len(about.Faults))
	m.count.wait = m.count.wait.plus(about.Wait, 1)
	m.count.waited += waited
	m.byEpoch[about.Epoch] += rows
	m.step, m.epoch = about.Step, about.Epoch
	// The steady rate begins at a batch and not at exactly 5 s. Otherwise a batch across
	// that moment would count as a part.
	if m.steadyT == 0 && t >= warmUp {
		m.steady, m.steadyT = m.count, t
	}
}

// positions records which rows of an epoch arrived. It returns an error if the column
// does not have the type of positions.
func (m *meter) positions(epoch uint64, column arrow.Array) error {
	positions, err := positionsOf(column)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen[epoch] == nil {
		m.seen[epoch] = &seenRows{}
	}
	for _, p := range positions {
		m.seen[epoch].add(p)
	}
	return nil
}

// seenRows is a set of positions as a bitmap: one bit for each row, where a map would
// take some 40 bytes. The meter's lock guards it.
type seenRows struct {
	words []uint64
	twice int64 // how often a position came that had come before
}

// add adds a position of 0 or more. The bitmap at least doubles when it grows, so that a
// stream in ascending order copies each word a constant number of times.
func (s *seenRows) add(p int64) {
	for int64(len(s.words))*64 <= p {
		s.words = append(s.words, make([]uint64, max(1024, len(s.words)))...)
	}
	if s.words[p/64]&(1<<(p%64)) != 0 {
		s.twice++
	}
	s.words[p/64] |= 1 << (p % 64)
}

// len counts the different positions. It scans the bitmap, because it is called once.
func (s *seenRows) len() (n int64) {
	for _, w := range s.words {
		n += int64(bits.OnesCount64(w))
	}
	return n
}

// end sets the end of the measurement. The time that the last stats action takes is
// thereby not part of it.
func (m *meter) end() {
	m.mu.Lock()
	m.ended = time.Since(m.start)
	m.mu.Unlock()
}

func (m *meter) setStats(st stats) {
	m.mu.Lock()
	m.now = st
	m.mu.Unlock()
}

func (m *meter) stats() stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// sample is what happened since the sample before, and the current state of the server.
type sample struct {
	Seconds     float64 `json:"seconds"` // since the start
	MBPerSecond float64 `json:"MB_per_s"`
	RowsPerSec  float64 `json:"rows_per_s"`
	Rows        int64   `json:"rows"` // since the start
	Batch       int64   `json:"batch"`
	Epoch       uint64  `json:"epoch"`
	Step        int64   `json:"step"`
	Wait        shares  `json:"wait"`

	ReadsInFlight int64           `json:"reads_in_flight"`
	BytesInFlight int64           `json:"bytes_in_flight"`
	InFlightLimit int64           `json:"in_flight_limit"`
	Latency       json.RawMessage `json:"latency"`
	Retries       int64           `json:"retries"` // since the start, as the next three
	Hedges        int64           `json:"hedges"`
	HedgesWon     int64           `json:"hedges_won"`
	SharedReads   int64           `json:"shared_reads"`
	WindowUsed    int64           `json:"window_used"`
	WindowLimit   int64           `json:"window_limit"`

	stats stats
}

// shares are the shares of the time that the server waited for each reason. Their sum is
// 1, or 0 if it did not wait.
type shares struct {
	Store    float64 `json:"store"`
	Spill    float64 `json:"spill"`
	Window   float64 `json:"window"`
	Encode   float64 `json:"encode"`
	Consumer float64 `json:"consumer"`
}

// shares divides each wait by the sum of all of them. Streams wait in parallel, so that
// the elapsed time is no possible divisor.
func (w waits) shares() shares {
	total := float64(w.Store + w.Spill + w.Window + w.Encode + w.Consumer)
	if total <= 0 {
		return shares{}
	}
	of := func(n int64) float64 { return round(float64(n)/total, 1000) }
	return shares{of(w.Store), of(w.Spill), of(w.Window), of(w.Encode), of(w.Consumer)}
}

// sample returns the sample that ends now. The next sample begins where this one ends, so
// that only the goroutine that reports may call it.
func (m *meter) sample() sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := time.Since(m.start)
	span := (t - m.lastT).Seconds()
	e, b := &m.now.Engine, &m.before.Engine
	s := sample{
		Seconds:       round(t.Seconds(), 1000),
		MBPerSecond:   rate(m.count.bytes-m.last.bytes, span) / 1e6,
		RowsPerSec:    rate(m.count.rows-m.last.rows, span),
		Rows:          m.count.rows,
		Batch:         m.count.batches,
		Epoch:         m.epoch,
		Step:          m.step,
		Wait:          m.count.wait.plus(m.last.wait, -1).shares(),
		ReadsInFlight: e.ReadsInFlight, BytesInFlight: e.BytesInFlight, InFlightLimit: e.InFlightLimit,
		Retries: e.Retries - b.Retries, Hedges: e.Hedges - b.Hedges, HedgesWon: e.HedgesWon - b.HedgesWon,
		SharedReads: e.SharedReads - b.SharedReads, stats: m.now,
	}
	s.MBPerSecond, s.RowsPerSec = round(s.MBPerSecond, 100), round(s.RowsPerSec, 10)
	s.WindowUsed, s.WindowLimit = m.now.window()
	s.Latency, _ = json.Marshal(e.Latency) // cannot fail: numbers only
	m.last, m.lastT = m.count, t
	return s
}

// window returns what the live streams hold and may hold. If the server does not report
// streams, the figures of the whole node are the closest.
func (st *stats) window() (used, limit int64) {
	for _, w := range st.Engine.Windows {
		used += w.Used
		limit += w.Limit
	}
	if limit == 0 {
		return st.Engine.WindowUsed, st.Engine.WindowLimit
	}
	return used, limit
}

// summary is the result of a measurement.
type summary struct {
	Summary     bool     `json:"summary"` // true: distinguishes the line from the samples before it
	Complete    bool     `json:"complete"`
	Bytes       int64    `json:"bytes"` // of record batches' bodies
	Rows        int64    `json:"rows"`
	Batches     int64    `json:"batches"`
	Seconds     float64  `json:"seconds"`
	MBPerSecond float64  `json:"MB_per_s"`
	SteadyMB    *float64 `json:"steady_MB_per_s"` // null if it was all warm-up
	RowsPerSec  float64  `json:"rows_per_s"`
	FirstBatch  float64  `json:"first_batch_s"`
	EpochRows   []int64  `json:"epoch_rows"` // of the epochs begun
	// Once says whether each row of each whole epoch came exactly once; null if it is
	// unknown.
	Once       *bool   `json:"exactly_once"`
	Duplicates int64   `json:"duplicates"`
	Missing    int64   `json:"missing"`
	Faults     int64   `json:"faults"`
	Wait       waits   `json:"wait_us"`
	WaitShares shares  `json:"wait"`
	Waited     float64 `json:"waited_s"` // by all consumers together, for batches

	Retries     int64           `json:"retries"`
	Hedges      int64           `json:"hedges"`
	HedgesWon   int64           `json:"hedges_won"`
	SharedReads int64           `json:"shared_reads"`
	FailedReads int64           `json:"failed_reads"`
	Latency     json.RawMessage `json:"latency"`
}

// summary returns the result. complete means that all streams came to their end. Only
// then an absent row is a missing one; in a measurement that was stopped, it may have
// been to come.
func (m *meter) summary(after stats, complete bool) summary {
	m.mu.Lock()
	defer m.mu.Unlock()
	// All counters of the server are differences, because it may have served before.
	e, b := &after.Engine, &m.before.Engine
	seconds := m.ended.Seconds()
	s := summary{
		Summary: true, Complete: complete,
		Bytes: m.count.bytes, Rows: m.count.rows, Batches: m.count.batches,
		Seconds:     round(seconds, 1e6),
		MBPerSecond: round(rate(m.count.bytes, seconds)/1e6, 100),
		RowsPerSec:  round(rate(m.count.rows, seconds), 10),
		FirstBatch:  round(m.first.Seconds(), 1e6),
		EpochRows:   []int64{},
		Faults:      m.count.faults, Wait: m.count.wait, WaitShares: m.count.wait.shares(),
		Waited:  round(m.count.waited.Seconds(), 1e6),
		Retries: e.Retries - b.Retries, Hedges: e.Hedges - b.Hedges, HedgesWon: e.HedgesWon - b.HedgesWon,
		SharedReads: e.SharedReads - b.SharedReads, FailedReads: e.FailedReads - b.FailedReads,
	}
	s.Latency, _ = json.Marshal(e.Latency) // cannot fail: numbers only
	// A batch at the end of the warm-up that is also the last one leaves no steady time.
	if m.steadyT > 0 && m.ended > m.steadyT {
		steady := round(rate(m.count.bytes-m.steady.bytes, (m.ended-m.steadyT).Seconds())/1e6, 100)
		s.SteadyMB = &steady
	}
	for _, epoch := range slices.Sorted(maps.Keys(m.byEpoch)) {
		s.EpochRows = append(s.EpochRows, m.byEpoch[epoch])
	}
	if len(m.seen) > 0 {
		// Each epoch that has begun has a bitmap.
		for _, seen := range m.seen {
			s.Duplicates += seen.twice
			if complete {
				s.Missing += m.perEpoch - seen.len()
			}
		}
		// An epoch without any received row has no bitmap: all of its rows are missing.
		if complete {
			s.Missing += m.perEpoch * (m.epochs - int64(len(m.seen)))
		}
		once := s.Duplicates == 0 && s.Missing == 0
		s.Once = &once
	}
	return s
}

// rate is n a second, and 0 without time, because JSON has no infinity.
func rate(n int64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(n) / seconds
}
