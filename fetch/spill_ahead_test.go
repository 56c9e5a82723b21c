package fetch_test

import (
	"encoding/binary"
	"path/filepath"
	"testing"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/peers"
	"bowstring/schema"
	"bowstring/spill"
	"bowstring/spill/replay"
)

// TestPrefetch has the consumer stop after a batch: the rest of what it will use is brought into the spill meanwhile.
func TestPrefetch(t *testing.T) {
	store := newStore(t)
	far := newCounted(store, put(t, store, "ds", 300))
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, WindowBytes: 64 << 10, NoHedge: true})
	s := begin(t, e, shuffled("ds", 1, 0), 0, 0)
	b, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	until(t, "all is in the spill", func() bool { return cache.Stats().Entries == images })
	// The stream may want what has just come and is not stored yet.
	n := far.reads.Load()
	if n > images+images/4 {
		t.Errorf("%d reads for %d images", n, images)
	}
	if st := e.Stats(); st.Fills < images/2 || st.Jobs[0].Streams != 1 || st.Jobs[0].Rows != 300 {
		t.Errorf("%d blobs were brought ahead: %+v", st.Fills, st.Jobs)
	}
	for range batches(t, s) {
		continue
	}
	if again := far.reads.Load() - n; again != 0 {
		t.Errorf("%d reads of what was there", again)
	}
}

// TestPrefetchEnds has a job of which the spill has everything: no row is looked for any more, until some are evicted.
func TestPrefetchEnds(t *testing.T) {
	store := newStore(t)
	put(t, store, "ds", 300)
	future := &spill.Future{}
	lru, err := replay.ParsePolicy("lru", nil)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := spill.Open(spill.Options{Dir: filepath.Join(t.TempDir(), "spill"), Bytes: spill.MinBytes + (8 << 20),
		Oracle: future, Policy: lru, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cache.Close(); err != nil {
			t.Error(err)
		}
	})
	e := newEngine(t, store, fetch.Options{Spill: cache, Future: future, NoHedge: true})
	epoch, looked := uint64(0), int64(0)
	read := func(epochs int) {
		for range epochs {
			for range batches(t, begin(t, e, shuffled("ds", 1, epoch), 0, 0)) {
				continue
			}
			epoch++
		}
	}
	begins := func() bool { read(1); return e.Stats().Looked > looked }
	ends := func() bool {
		looked = e.Stats().Looked
		read(30) // the goroutine that looks has its turn in some of them
		return e.Stats().Looked == looked
	}
	until(t, "rows are looked for", begins)
	until(t, "no row is looked for", ends)
	put(t, store, "ds", 301) // the same request is for another snapshot now
	until(t, "rows of another snapshot are looked for", begins)
	until(t, "none of them is", ends)
	until(t, "something is evicted", func() bool {
		b := make([]byte, 64<<10)
		binary.LittleEndian.PutUint64(b, uint64(cache.Stats().Stored))
		cache.Put(schema.RefOf(b), spill.Place{Dataset: cache.Dataset("another")}, time.Millisecond, b)
		return cache.Stats().Datasets["ds@2"].Evicted > 0
	})
	until(t, "rows are looked for again", begins)
}

// TestPrefetchWaits has nothing brought while a consumer waits.
func TestPrefetchWaits(t *testing.T) {
	store := newStore(t)
	far := newCounted(store, put(t, store, "ds", 300))
	one := put(t, store, "one", 1)
	far.chunks[one.Chunks[0].Key] = true
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, WindowBytes: 64 << 10, NoHedge: true})
	for _, name := range []string{"ds", "one"} {
		open(t, e, shuffled(name, 1, 0)) // their manifests are read before reads hang
	}
	release := far.hold()
	done := make(chan int)
	// A consumer waits before there is anything to bring ahead.
	for i, name := range []string{"one", "ds"} {
		brought := e.Stats().Fills
		s := begin(t, e, shuffled(name, 1, 0), 0, 0)
		go func() {
			n := 0
			for b := range batches(t, s) {
				n += b.Rows
			}
			done <- n
		}()
		until(t, "the consumer waits", func() bool { return e.Stats().Waiting == i+1 })
		if n := e.Stats().Fills - brought; i == 1 && n != 0 {
			t.Errorf("%d blobs were brought ahead while a consumer waited", n)
		}
	}
	release()
	if n := <-done + <-done; n != 301 {
		t.Errorf("%d rows", n)
	}
}

// TestJobsOfStreams says which streams are the same job to the spill.
func TestJobsOfStreams(t *testing.T) {
	store := newStore(t)
	put(t, store, "ds", 300)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, store, fetch.Options{Spill: cache, Future: future, NoHedge: true})
	requireJobs := func(n int) {
		t.Helper()
		if got := future.Len(); got != n || len(e.Stats().Jobs) != n {
			t.Fatalf("%d jobs, want %d: %+v", got, n, e.Stats().Jobs)
		}
	}
	first := begin(t, e, shuffled("ds", 1, 5), 0, 0)
	requireJobs(1)
	begin(t, e, shuffled("ds", 1, 5), 0, 1) // another worker of it
	requireJobs(1)
	begin(t, e, shuffled("ds", 2, 5), 0, 0)
	requireJobs(2)
	again := begin(t, e, shuffled("ds", 1, 0), 0, 0) // from the beginning, while the first is at its fifth epoch
	requireJobs(3)
	begin(t, e, shuffled("ds", 1, 7), 0, 0) // far ahead of it
	requireJobs(4)
	for range batches(t, first) {
		continue
	}
	first.Close()
	requireJobs(4) // it may have another epoch
	begin(t, e, shuffled("ds", 1, 6), 0, 0)
	requireJobs(4)
	// A job without a shuffle reads the data once.
	once := shuffled("ds", 1, 0)
	once.Shuffle = nil
	scan := begin(t, e, once, 0, 0)
	requireJobs(5)
	for range batches(t, scan) {
		continue
	}
	scan.Close()
	requireJobs(4)
	again.Close()
	requireJobs(4)
	// Ranks share a job.
	ranks := shuffled("ds", 3, 0)
	ranks.World = &schema.World{Size: 3}
	begin(t, e, ranks, 0, 0)
	begin(t, e, ranks, 2, 0)
	requireJobs(5)
}

// TestSpillKeepsPages reads the pages of a manifest that does not fit into memory from the spill.
func TestSpillKeepsPages(t *testing.T) {
	store := newStore(t)
	snap := putPages(t, store, "ds", 300, 4)
	const pages = 300 / 4
	far := newCounted(store, snap)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	opts := fetch.Options{Spill: cache, Future: future, NoHedge: true, Resident: -1}
	opts.Memory.Manifests = 20_000
	e := newEngine(t, far, opts)
	req := shuffled("ds", 1, 0)
	drain(t, e, open(t, e, req), ticket(req, 0))
	until(t, "all is in the spill", func() bool { return cache.Stats().Entries == images+pages })
	far.reads.Store(0)
	req = shuffled("ds", 2, 0)
	drain(t, e, open(t, e, req), ticket(req, 0))
	if n, again := far.reads.Load(), e.Stats().Retries; n > again {
		t.Errorf("%d reads of what is in the spill, %d attempts again", n, again)
	}
	// A read of all pages leaves the spill unchanged.
	other := putPages(t, store, "other", 100, 4)
	far.chunks[other.Chunks[0].Key] = true
	entries := cache.Stats().Entries
	if j := open(t, e, schema.Request{Dataset: "other", Where: "name contains '7'"}); j.Plan().Rows() == 0 {
		t.Error("no row matches")
	}
	if n := cache.Stats().Entries; n != entries {
		t.Errorf("%d more blobs are in the spill", n-entries)
	}
}

// elsewhere is a cluster in which another node, which cannot be reached, owns everything.
type elsewhere struct{}

func (elsewhere) Route(schema.BlobRef) peers.Route { return peers.Route{Ask: []string{"other"}} }

// TestSpillKeepsPagesOfOthersBlobs: the spill caches pages of a manifest whichever node owns the blobs, because pages are
// requested from no other node.
func TestSpillKeepsPagesOfOthersBlobs(t *testing.T) {
	store := newStore(t)
	snap := putPages(t, store, "ds", 300, 4)
	const pages = 300 / 4
	far := newCounted(store, snap)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	others := must(peers.New(peers.Options{
		Directory: elsewhere{}, SnapshotName: cache.DatasetName, Logger: quiet,
		Dial: func(string) (peers.Link, error) { return nil, schema.ErrUnavailable },
	}))
	t.Cleanup(func() { _ = others.Close() })
	opts := fetch.Options{Spill: cache, Future: future, Peers: others, NoHedge: true, Resident: -1}
	opts.Memory.Manifests = 20_000
	e := newEngine(t, far, opts)
	req := shuffled("ds", 1, 0)
	drain(t, e, open(t, e, req), ticket(req, 0))
	until(t, "the pages are in the spill", func() bool { return cache.Stats().Entries >= pages })
	if n := cache.Stats().Entries; n != pages {
		t.Errorf("%d blobs are in the spill, want the %d pages", n, pages)
	}
}

// TestWarmLeavesOthersBlobs brings nothing that another node owns.
func TestWarmLeavesOthersBlobs(t *testing.T) {
	store := newStore(t)
	snap := putPages(t, store, "ds", 300, 4)
	far := newCounted(store, snap)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	others := must(peers.New(peers.Options{
		Directory: elsewhere{}, SnapshotName: cache.DatasetName, Logger: quiet,
		Dial: func(string) (peers.Link, error) { return nil, schema.ErrUnavailable },
	}))
	t.Cleanup(func() { _ = others.Close() })
	e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, Peers: others})
	var last fetch.WarmProgress
	if err := e.Warm(t.Context(), open(t, e, shuffled("ds", 1, 0)), func(p fetch.WarmProgress) {
		last = p
	}); err != nil {
		t.Fatal(err)
	}
	if n := cache.Stats().Entries; n != 0 || last.Stored != 0 || last.Seen != last.Rows {
		t.Errorf("%d blobs are in the spill after %+v", n, last)
	}
}

// TestFollowedStreamsHaveTenants keeps what is brought for a stream of another node on the account of its tenant.
func TestFollowedStreamsHaveTenants(t *testing.T) {
	store := newStore(t)
	snap := putPages(t, store, "ds", 300, 4)
	cache, future, _ := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, newCounted(store, snap), fetch.Options{Spill: cache, Future: future})
	req := shuffled("ds", 1, 0)
	j := open(t, e, req)
	e.SetTerms(func(string) fetch.Terms { return fetch.Terms{} }) // where no tenant has terms, blobs are on no account
	f := e.Follow()
	defer f.Close()
	ticket := fetch.Progress{ID: 1, Ticket: schema.Ticket{Request: j.Request()}.Marshal(), Tenant: "theirs"}
	until(t, "all is in the spill", func() bool {
		if err := f.Update(t.Context(), []fetch.Progress{ticket}); err != nil {
			t.Fatal(err)
		}
		return cache.Stats().Entries == images
	})
	if got, all := cache.TenantBytes("theirs"), cache.TenantBytes(""); got == 0 || all != 0 {
		t.Errorf("%d bytes are on the tenant's account, %d on no tenant's", got, all)
	}
}
