package command

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"bowstring/cmd/bowstring/metrics"
	"bowstring/fetch"
	"bowstring/fetch/admission"
	ourflight "bowstring/flight"
	"bowstring/flight/auth"
	"bowstring/schema"
)

// expectFiring replays what went on between two scrapes, as if it went on for as
// long as a replay is, and says which alerts have to fire, and no others.
func expectFiring(t *testing.T, o *observed, before flat, want ...string) {
	t.Helper()
	slices.Sort(want)
	after := o.flat()
	got := firing(t, replayOf(before, after))
	if !slices.Contains(want, "BowstringStoreBound") && len(want) > 0 {
		// A job that reads little, and with errors, waits for the store as well.
		got = slices.DeleteFunc(got, func(name string) bool { return name == "BowstringStoreBound" })
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v fire, want %v", got, want)
	}
}

func (o *observed) flat() flat {
	o.t.Helper()
	return flatten(o.scrape(), "bowstring", "a:1")
}

// A server under load without errors raises no alert.
func TestNoAlertFires(t *testing.T) {
	o := newObserved(t, observedOptions{
		spill: spillIn(t.TempDir()), collections: metrics.NewCollections(24 * time.Hour), memoryLimit: 1 << 40,
		certificates: func() map[string]time.Time {
			return map[string]time.Time{"admin": time.Now().Add(90 * 24 * time.Hour)}
		},
		sources: func() map[string]bool { return map[string]bool{"tokens": false} },
	})
	for o.server.Stats().Engine.Spill.Entries < observedRows {
		o.mustRead(1)
	}
	before := o.flat()
	o.mustRead(3)
	expectFiring(t, o, before)
}

// clusterTroubles has each alert of a cluster fire by what its nodes measure where they have the trouble, and returns
// which.
func clusterTroubles(t *testing.T) map[string]bool {
	t.Helper()
	fired := map[string]bool{}
	// scraped is a node, as it is seen at a moment.
	scraped := func(node, view string, members int, change func(*metrics.Cluster, *ourflight.Stats,
		*[]fetch.Times)) []*dto.MetricFamily {
		c := &metrics.Cluster{Name: "lab", Node: node, View: view, Members: members, Share: 0.5, Read: time.Now(),
			Up: 1}
		var st ourflight.Stats
		var times []fetch.Times
		if change != nil {
			change(c, &st, &times)
		}
		collector, err := metrics.New(metrics.Options{
			Stats: func() ourflight.Stats { return st }, Times: func() []fetch.Times { return times },
			Cluster: func() *metrics.Cluster { return c },
		})
		if err != nil {
			t.Fatal(err)
		}
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(collector)
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return families
	}
	join := func(all ...flat) flat {
		for _, one := range all[1:] {
			for name, s := range one.series {
				all[0].series[name] = s
			}
		}
		return all[0]
	}
	expect := func(h *history, want string) {
		t.Helper()
		got := slices.DeleteFunc(firing(t, h), func(name string) bool { return name == "BowstringProcessMemory" })
		if want == "" && len(got) > 0 || want != "" && !slices.Equal(got, []string{want}) {
			t.Errorf("%v fire, want %q", got, want)
		}
		fired[want] = true
	}
	two := func(view string, change func(*metrics.Cluster, *ourflight.Stats, *[]fetch.Times)) flat {
		return join(flatten(scraped("a", "v1", 2, change), "bowstring", "a:1"),
			flatten(scraped("b", view, 2, nil), "bowstring", "b:1"))
	}
	well := two("v1", nil)
	later := two("v1", func(_ *metrics.Cluster, st *ourflight.Stats, times *[]fetch.Times) {
		st.Engine.FellBack = 1
		*times = []fetch.Times{peerTimes(1000, 20*time.Millisecond)}
	})
	later.at = well.at.Add(time.Second)
	expect(replayOf(well, later), "")
	expect(replayOf(well, two("v2", nil)), "BowstringViewsDiffer")
	expect(replayOf(well, two("v1", func(c *metrics.Cluster, _ *ourflight.Stats, _ *[]fetch.Times) {
		c.Up, c.Silent = 0, 1
	})), "BowstringPeersSlow")
	slow := two("v1", func(_ *metrics.Cluster, _ *ourflight.Stats, times *[]fetch.Times) {
		*times = []fetch.Times{peerTimes(100, 500*time.Millisecond)}
	})
	slow.at = well.at.Add(time.Second)
	expect(replayOf(well, slow), "BowstringPeersSlow")
	stands := two("v1", func(_ *metrics.Cluster, st *ourflight.Stats, times *[]fetch.Times) {
		st.Engine.FellBack = 500
		*times = []fetch.Times{peerTimes(500, 20*time.Millisecond)}
	})
	stands.at = well.at.Add(time.Second)
	expect(replayOf(well, stands), "BowstringStoreStandsIn")
	// A node goes: the others agree that it has gone.
	h := replayOf(well, two("v1", nil))
	h.change("bowstring_cluster_members", replayed/2, 1)
	expect(h, "BowstringNodeMissing")
	return fired
}

// peerTimes are those of n reads from other nodes that each took the same time.
func peerTimes(n int, each time.Duration) fetch.Times {
	return fetch.Times{Tier: "peer", Count: uint64(n), Sum: time.Duration(n) * each}
}

// request is one for the images in order.
func imagesOf(onError string) schema.Request {
	return schema.Request{Dataset: "photos", Batch: 8, OnError: onError}
}

// Each alert fires on a server that has its trouble.
func TestAlertsFire(t *testing.T) {
	fired := map[string]bool{"BowstringDown": false}
	expect := func(t *testing.T, o *observed, before flat, want ...string) {
		t.Helper()
		expectFiring(t, o, before, want...)
		for _, name := range want {
			fired[name] = true
		}
	}
	t.Run("store is slow", func(t *testing.T) {
		o := newObserved(t, observedOptions{engine: fetch.Options{MaxReads: 1, NoHedge: true}})
		before := o.flat()
		o.store.now.Store(int32(slow))
		o.mustRead(1)
		for range 20 {
			if slices.Contains(firing(t, replayOf(before, o.flat())), "BowstringStoreBound") {
				break
			}
			before = o.flat() // the machine did something else meanwhile
			o.mustRead(1)
		}
		expect(t, o, before, "BowstringStoreBound")
	})
	t.Run("store is silent", func(t *testing.T) {
		o := newObserved(t, observedOptions{})
		o.mustRead(1)
		o.store.now.Store(int32(silent))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := o.read(ctx, imagesOf(""), "")
			ended <- err
		}()
		for o.engine.Stats().Waiting == 0 {
			select {
			case err := <-ended:
				t.Fatalf("a stream over a silent store ended: %v", err)
			case <-time.After(time.Millisecond): // no event says that a stream waits
			}
		}
		before := o.flat()
		expect(t, o, before, "BowstringStalled")
		cancel()
		<-ended
	})
	t.Run("blobs are damaged", func(t *testing.T) {
		o := newObserved(t, observedOptions{})
		o.mustRead(1)
		before := o.flat()
		o.store.now.Store(int32(damaging))
		if _, err := o.read(t.Context(), imagesOf(""), ""); err == nil {
			t.Fatal("a stream of damaged blobs has no error")
		}
		expect(t, o, before, "BowstringDataLoss", "BowstringStoreErrors")
	})
	t.Run("samples are skipped", func(t *testing.T) {
		o := newObserved(t, observedOptions{})
		o.mustRead(1)
		before := o.flat()
		o.store.now.Store(int32(damaging))
		if rows, err := o.read(t.Context(), imagesOf(schema.OnErrorNull), ""); err != nil || rows != observedRows {
			t.Fatalf("a stream that goes on without images gave %d rows, then %v", rows, err)
		}
		expect(t, o, before, "BowstringDataLoss", "BowstringSamplesSkipped", "BowstringStoreErrors")
	})
	t.Run("store is away", func(t *testing.T) {
		o := newObserved(t, observedOptions{engine: fetch.Options{ReadTimeout: 4 * time.Second}})
		o.mustRead(1)
		before := o.flat()
		o.store.now.Store(int32(away))
		if _, err := o.read(t.Context(), imagesOf(""), ""); err == nil {
			t.Fatal("a stream over a store that is away has no error")
		}
		expect(t, o, before, "BowstringReadsGivenUp", "BowstringStoreErrors")
	})
	t.Run("spill is damaged", func(t *testing.T) {
		dir := t.TempDir()
		o := newObserved(t, observedOptions{spill: spillIn(dir)})
		for o.server.Stats().Engine.Spill.Entries < observedRows {
			o.mustRead(1)
		}
		before := o.flat()
		damageFiles(t, dir)
		o.mustRead(3)
		expect(t, o, before, "BowstringSpillFailing")
	})
	t.Run("disk is full", func(t *testing.T) {
		opts := spillIn(t.TempDir())
		opts.KeepFree = 1 << 60
		o := newObserved(t, observedOptions{spill: opts})
		before := o.flat()
		for o.server.Stats().Engine.Spill.Bypassed == 0 { // blobs are stored gradually
			o.mustRead(1)
		}
		expect(t, o, before, "BowstringSpillDiskFull")
	})
	t.Run("memory is short", func(t *testing.T) {
		o := newObserved(t, observedOptions{memoryLimit: 1 << 20})
		o.mustRead(1)
		hold, ok := o.engine.Ledger().Try(admission.Uploads, 500<<20)
		if !ok {
			t.Fatal("no memory for uploads")
		}
		defer hold.Release()
		expect(t, o, o.flat(), "BowstringMemoryShort", "BowstringProcessMemory")
	})
	t.Run("draining, with as many streams as there may be", func(t *testing.T) {
		o := newObserved(t, observedOptions{flight: ourflight.Options{MaxStreams: 1, MaxStreamsPerPeer: 1}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		// opens the manifest
		if _, err := o.client.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorPATH,
			Path: []string{"photos"}}); err != nil {
			t.Fatal(err)
		}
		o.store.now.Store(int32(silent))
		stream, err := o.client.DoGet(ctx, &flight.Ticket{Ticket: schema.Ticket{Request: imagesOf("")}.Marshal()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil { // the schema: the stream runs
			t.Fatal(err)
		}
		drained := make(chan error, 1)
		drain, cut := context.WithCancel(ctx)
		defer cut()
		go func() { drained <- o.server.Shutdown(drain) }()
		for !o.server.Draining() || o.engine.Stats().Waiting == 0 {
			time.Sleep(time.Millisecond) // no event says that it has begun
		}
		expect(t, o, o.flat(), "BowstringDraining", "BowstringStalled", "BowstringStreamsNearLimit")
		cut() // the stream still runs
		if err := <-drained; err == nil {
			t.Error("a drain that was cut short has no error")
		}
	})
	t.Run("certificate ends, no collection", func(t *testing.T) {
		o := newObserved(t, observedOptions{
			collections: metrics.NewCollections(time.Minute),
			certificates: func() map[string]time.Time {
				return map[string]time.Time{"admin": time.Now().Add(24 * time.Hour)}
			},
		})
		expect(t, o, o.flat(), "BowstringCertificateEnds", "BowstringCollectionOverdue")
	})
	t.Run("source unreadable", func(t *testing.T) {
		sources := auth.NewSources(time.Hour, quiet)
		sources.Add("tokens", true).Note(t.Context(), os.ErrPermission)
		o := newObserved(t, observedOptions{sources: func() map[string]bool { return unreadable(sources) }})
		expect(t, o, o.flat(), "BowstringSourceUnreadable")
	})
	t.Run("cluster", func(t *testing.T) {
		for name := range clusterTroubles(t) {
			fired[name] = true
		}
	})
	t.Run("down", func(t *testing.T) {
		up := labels.FromStrings(model.MetricNameLabel, "up", "job", "bowstring", "instance", "a:1")
		series := flat{time.Now(), map[string]flatSeries{up.String(): {up, 0, false}}}
		if got := firing(t, replayOf(series, series)); !slices.Equal(got, []string{"BowstringDown"}) {
			t.Errorf("%v fire, want BowstringDown", got)
		}
		fired["BowstringDown"] = true
	})
	for _, r := range alertRules(t) {
		if r.Alert != "" && !fired[r.Alert] && !t.Failed() {
			t.Errorf("no case fires %s", r.Alert)
		}
	}
}

// damageFiles turns a bit in every few hundred bytes of all segments below a directory.
func damageFiles(t *testing.T, dir string) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".seg" {
			return err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		var b [1]byte
		for at := int64(200); at < st.Size(); at += 900 { // within each blob of 2,000 bytes
			if _, err := f.ReadAt(b[:], at); err != nil {
				return err
			}
			b[0] ^= 1
			if _, err := f.WriteAt(b[:], at); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		t.Fatalf("there is nothing in %s", dir)
	}
}
