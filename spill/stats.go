package spill

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
)

// counters are since the cache was opened.
type counters struct {
	written, moved                                            atomic.Int64 // bytes
	evicted, damaged, readErrors, writeErrors, diskFull, busy atomic.Int64
}

// dataset counts for one dataset, since the cache was opened; entries and bytes are what is there now.
type dataset struct {
	name                                   string
	asked                                  Time         // when its number was asked for last; guarded by Cache.mu
	claims                                 atomic.Int64 // blobs that are being stored, or wait for it
	hits, hitBytes, misses, missBytes      atomic.Int64
	stored, storedBytes, bypassed, evicted atomic.Int64
	entries, bytes                         atomic.Int64
}

func (d *dataset) enter(s *slot) {
	d.entries.Add(1)
	d.bytes.Add(int64(s.length))
}

func (d *dataset) leave(s *slot) {
	d.entries.Add(-1)
	d.bytes.Add(-int64(s.length))
}

// Stats are counters since the cache was opened, and what is there now.
type Stats struct {
	Policy      string `json:"policy"`
	BudgetBytes int64  `json:"budget_bytes"`
	HeldBytes   int64  `json:"held_bytes"` // of the disk, dead space and an allowance for the index included
	Segments    int    `json:"segments"`   // files
	// ElsewhereBytes are of blobs that cannot be evicted, as clients of an earlier server have their files still.
	ElsewhereBytes int64 `json:"elsewhere_bytes"`

	DatasetStats // of all

	WrittenBytes int64 `json:"written_bytes"` // to segments, headers and padding included
	MovedBytes   int64 `json:"moved_bytes"`   // rewritten to give back the space of others
	Damaged      int64 `json:"damaged"`       // blobs whose checksum was wrong
	ReadErrors   int64 `json:"read_errors"`
	WriteErrors  int64 `json:"write_errors"`
	DiskFull     int64 `json:"disk_full"` // blobs not stored as the disk was full
	Busy         int64 `json:"busy"`      // blobs offered and not stored as the disk was too slow
	// Unnamed is how often a snapshot got no number, as all are in use: its blobs are not stored.
	Unnamed   int64 `json:"unnamed"`
	IndexLost bool  `json:"index_lost"` // the index could not be written: what is there will not be after a restart

	Datasets map[string]DatasetStats `json:"datasets"` // by name
}

// DatasetStats are those of a dataset.
type DatasetStats struct {
	Entries     int64 `json:"entries"` // blobs that are there now
	Bytes       int64 `json:"bytes"`   // of these
	Hits        int64 `json:"hits"`
	HitBytes    int64 `json:"hit_bytes"`
	Misses      int64 `json:"misses"`
	MissBytes   int64 `json:"miss_bytes"`
	Stored      int64 `json:"stored"`
	StoredBytes int64 `json:"stored_bytes"`
	Bypassed    int64 `json:"bypassed"` // blobs not stored: others are worth more, or the disk failed
	Evicted     int64 `json:"evicted"`
}

func (d *dataset) stats() DatasetStats {
	return DatasetStats{
		Entries: d.entries.Load(), Bytes: d.bytes.Load(),
		Hits: d.hits.Load(), HitBytes: d.hitBytes.Load(), Misses: d.misses.Load(), MissBytes: d.missBytes.Load(),
		Stored: d.stored.Load(), StoredBytes: d.storedBytes.Load(), Bypassed: d.bypassed.Load(),
		Evicted: d.evicted.Load(),
	}
}

// take adds what another one has counted, of which nothing is there.
func (d *dataset) take(o *dataset) {
	for _, c := range []struct{ to, from *atomic.Int64 }{
		{&d.hits, &o.hits}, {&d.hitBytes, &o.hitBytes}, {&d.misses, &o.misses}, {&d.missBytes, &o.missBytes},
		{&d.stored, &o.stored}, {&d.storedBytes, &o.storedBytes}, {&d.bypassed, &o.bypassed}, {&d.evicted, &o.evicted},
	} {
		c.to.Add(c.from.Load())
	}
}

func (d *DatasetStats) add(o DatasetStats) {
	d.Entries += o.Entries
	d.Bytes += o.Bytes
	d.Hits += o.Hits
	d.HitBytes += o.HitBytes
	d.Misses += o.Misses
	d.MissBytes += o.MissBytes
	d.Stored += o.Stored
	d.StoredBytes += o.StoredBytes
	d.Bypassed += o.Bypassed
	d.Evicted += o.Evicted
}

// Stats returns what the cache counts.
func (c *Cache) Stats() Stats {
	st := Stats{
		Policy: c.opts.Policy.Name(), BudgetBytes: c.space.budget.Load(), HeldBytes: c.space.held.Load(),
		WrittenBytes: c.count.written.Load(), MovedBytes: c.count.moved.Load(),
		Damaged: c.count.damaged.Load(), ReadErrors: c.count.readErrors.Load(), WriteErrors: c.count.writeErrors.Load(),
		DiskFull: c.count.diskFull.Load(), Busy: c.count.busy.Load(), IndexLost: c.index.lost(),
		Unnamed:  c.named.unnamed.Load(),
		Datasets: map[string]DatasetStats{},
	}
	st.Segments, st.ElsewhereBytes = int(c.space.files.Load()), c.elsewhere.bytes.Load()
	c.mu.Lock()
	sets := slices.Clone(c.named.sets)
	c.mu.Unlock()
	for _, d := range sets {
		one := d.stats()
		st.add(one)
		if d.name != "" && one != (DatasetStats{}) {
			st.Datasets[d.name] = one
		}
	}
	return st
}

// trouble logs what goes wrong with the disk, each kind at most every ten seconds.
type trouble struct {
	log   *slog.Logger
	clock func() Time

	mu    sync.Mutex
	kinds map[string]*reported
}

type reported struct {
	at      Time
	skipped int64
}

const reportInterval = Time(10e9)

func (t *trouble) report(what string, err error) {
	if skipped, ok := t.due(what); ok {
		t.log.Warn("trouble with the disk of the spill; streams go on from the store", "what", what, "error", err,
			"not_logged_before", skipped)
	}
}

// full reports that a name got none of so many numbers.
func (t *trouble) full(name string, numbers int) {
	if skipped, ok := t.due("numbers"); ok {
		t.log.Warn("all numbers of snapshots are in use: blobs of further snapshots are not kept in the spill",
			"snapshot", name, "numbers", numbers, "not_logged_before", skipped)
	}
}

// due reports whether something is logged now, and how often it was not before.
func (t *trouble) due(what string) (skipped int64, ok bool) {
	now := t.clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kinds == nil {
		t.kinds = map[string]*reported{}
	}
	r := t.kinds[what]
	if r == nil {
		r = &reported{at: now - reportInterval}
		t.kinds[what] = r
	}
	if now-r.at < reportInterval {
		r.skipped++
		return 0, false
	}
	skipped, r.at, r.skipped = r.skipped, now, 0
	return skipped, true
}
