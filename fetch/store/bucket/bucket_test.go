package bucket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/fetch/store/protocol"
	"bowstring/internal/objecttest"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// testOptions are the options of a store in a test. Its processes renew their rows more
// often than would be worth the requests otherwise. No row lapses, however long a busy
// machine keeps a process from renewing it.
func testOptions() Options {
	return Options{
		Logger: slog.New(slog.DiscardHandler), Renew: 100 * time.Millisecond, Lapse: time.Hour,
		Bucket: object.Options{Keys: &object.Keys{ID: "key", Secret: "secret"}},
	}
}

// found makes a store without a proof.
func found(t testing.TB, url string) {
	t.Helper()
	foundWith(t, url, testOptions())
}

func foundWith(t testing.TB, url string, opts Options) {
	t.Helper()
	s, err := reach(t.Context(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.make(t.Context()), s.bucket.Close()); err != nil {
		t.Fatal(err)
	}
	s.end()
}

func open(t testing.TB, url string, opts Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func startServer(t testing.TB, cfg objecttest.Config) *objecttest.Server {
	t.Helper()
	server, err := objecttest.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// at is the URL of a store under a prefix of a bucket of the server.
func at(server *objecttest.Server, name string) string {
	place, settings, _ := strings.Cut(server.URL(name), "?")
	return place + "/some/where?" + settings
}

func conforms(t *testing.T, place func(t testing.TB) string) {
	storetest.Run(t, func(t testing.TB) storetest.Opener {
		url := place(t)
		found(t, url)
		return func() (store.Store, error) { return Open(t.Context(), url, testOptions()) }
	})
}

// TestConformanceDirectory: a store in a directory that is taken for a bucket is a store.
func TestConformanceDirectory(t *testing.T) {
	conforms(t, func(t testing.TB) string { return "file://" + t.TempDir() })
}

// TestConformanceServer runs the conformance tests at an S3 server that sends lists in
// small pages.
func TestConformanceServer(t *testing.T) {
	server := startServer(t, objecttest.Config{PageSize: 3})
	n := 0
	conforms(t, func(testing.TB) string { n++; return at(server, fmt.Sprintf("bucket-%d", n)) })
}

// TestConformanceFaults: and one at a server that loses answers, refuses some requests and cuts bodies short.
func TestConformanceFaults(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	server := startServer(t, objecttest.Config{Seed: seed})
	n := 0
	storetest.Run(t, func(t testing.TB) storetest.Opener {
		n++
		url := at(server, fmt.Sprintf("bucket-%d", n))
		server.Heal()
		found(t, url)
		server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Put}, Share: .05, Lose: true})
		server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.List}, Share: .05, RepeatPage: true})
		return func() (store.Store, error) { return Open(t.Context(), url, testOptions()) }
	})
}

// TestLostAnswers: writers at many processes commit to one dataset while a fifth of the
// answers is lost. Each commits once what its answer reported.
func TestLostAnswers(t *testing.T) {
	const writers, each = 32, 1
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	server := startServer(t, objecttest.Config{Seed: seed})
	url := at(server, "bucket")
	found(t, url)
	server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Put}, Share: .2, Lose: true})
	var g errgroup.Group
	for w := range writers {
		s := open(t, url, testOptions())
		g.Go(func() error {
			for i := range each {
				if err := commitOne(t.Context(), s, fmt.Sprintf("%d-%d", w, i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	server.Heal()
	s := open(t, url, testOptions())
	list, err := s.Datasets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]int{}
	for _, number := range list[0].Snapshots {
		snap, err := s.Snapshot(t.Context(), "d", number)
		if err != nil {
			t.Fatal(err)
		}
		sources[snap.Source]++
	}
	if len(list[0].Snapshots) != writers*each || len(sources) != writers*each {
		t.Errorf("%d snapshots of %d commits, want %d", len(list[0].Snapshots), len(sources), writers*each)
	}
}

// commitOne appends a snapshot to dataset d, however often others are first.
func commitOne(ctx context.Context, s *Store, source string) (err error) {
	in, err := s.Begin(ctx, "d")
	for errors.Is(err, schema.ErrUnavailable) { // of many swaps one has no answer five times in a row
		in, err = s.Begin(ctx, "d")
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	snap, err := storetest.Put(ctx, in, [][]byte{[]byte(source)}, 8)
	if err != nil {
		return err
	}
	for {
		snap.Source = source
		newest, err := s.Snapshot(ctx, "d", 0)
		switch {
		case err == nil:
			snap.Parent = newest.Number
		case !errors.Is(err, schema.ErrNotFound):
			return err
		}
		_, err = in.Commit(ctx, snap)
		if errors.Is(err, schema.ErrConflict) || errors.Is(err, schema.ErrUnavailable) {
			continue
		}
		return err
	}
}

// racy is a bucket that takes conditions, looks whether they hold, and writes a moment later.
type racy struct {
	object.Bucket
	turn    *sync.Mutex // nil: all at once
	ignores bool        // conditions altogether
}

func (r *racy) Put(ctx context.Context, key string, body []byte, c object.Condition) (object.Info, object.Outcome, error) {
	if r.turn != nil {
		r.turn.Lock()
		defer r.turn.Unlock()
	}
	if !r.ignores && c != (object.Condition{}) {
		info, err := r.Stat(ctx, key)
		there := err == nil
		if c.Absent && there || !c.Absent && (!there || info.Version != c.Version) {
			return object.Info{}, object.Moved, errors.New("moved")
		}
		time.Sleep(time.Millisecond)
	}
	return r.Bucket.Put(ctx, key, body, object.Condition{})
}

// TestProof: a bucket that loses updates is refused, however it does; one that keeps conditions is not.
func TestProof(t *testing.T) {
	server := startServer(t, objecttest.Config{})
	bucket := func(name string) object.Bucket {
		b, err := object.Open(t.Context(), server.URL(name), testOptions().Bucket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	for name, tt := range map[string]struct {
		make func(b object.Bucket) []object.Bucket
		says string // "": it passes
	}{
		"right":         {func(b object.Bucket) []object.Bucket { return []object.Bucket{b} }, ""},
		"right, twice":  {func(b object.Bucket) []object.Bucket { return []object.Bucket{b, b} }, ""},
		"takes turns":   {func(b object.Bucket) []object.Bucket { return []object.Bucket{&racy{Bucket: b, turn: &sync.Mutex{}}} }, ""},
		"loses updates": {func(b object.Bucket) []object.Bucket { return []object.Bucket{&racy{Bucket: b}} }, "at the same time"},
		"ignores conditions": {func(b object.Bucket) []object.Bucket {
			return []object.Bucket{&racy{Bucket: b, ignores: true}}
		}, "though the object was there"},
		"right at each endpoint alone": {func(b object.Bucket) []object.Bucket {
			return []object.Bucket{&racy{Bucket: b, turn: &sync.Mutex{}}, &racy{Bucket: b, turn: &sync.Mutex{}}}
		}, "at the same time"},
	} {
		t.Run(name, func(t *testing.T) {
			b := bucket(strings.NewReplacer(" ", "-", ",", "").Replace(name))
			done, err := prove(t.Context(), tt.make(b), "proof/")
			switch {
			case tt.says == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.says == "":
				if done.Changes != proofRounds*proofWriters*proofChanges || done.Creations != proofCreations || done.Requests == 0 {
					t.Errorf("the proof is %+v", done)
				}
			case !errors.Is(err, schema.ErrNotSupported) || !strings.Contains(fmt.Sprint(err), tt.says) && !strings.Contains(fmt.Sprint(err), "changed one object"):
				t.Errorf("got %v, want a refusal that says %q", err, tt.says)
			}
			if left := server.Keys(strings.NewReplacer(" ", "-", ",", "").Replace(name)); len(left) > 0 {
				t.Errorf("the proof leaves %q", left)
			}
		})
	}
}

// TestInit: one of several processes makes the store. Opening a place without a store
// says how to make one.
func TestInit(t *testing.T) {
	server := startServer(t, objecttest.Config{})
	url := at(server, "bucket")
	_, err := Open(t.Context(), url, testOptions())
	if !errors.Is(err, schema.ErrNotFound) || !strings.Contains(err.Error(), "bowstring store init --store s3://bucket/some/where?endpoint=") {
		t.Errorf("open where no store is: %v", err)
	}
	var g errgroup.Group
	for range 4 {
		g.Go(func() error {
			_, err := Init(t.Context(), url, InitOptions{Options: testOptions(), Endpoints: []string{server.Endpoint()}})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := server.Keys("bucket"); len(got) != 2 {
		t.Errorf("a new store is %q", got)
	}
	server.PutObject("bucket", "some/where/FORMAT", []byte(`{"format":"bowstring-bucket","version":2}`))
	if _, err = Open(t.Context(), url, testOptions()); !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "format 2") {
		t.Errorf("open a later format: %v", err)
	}
	for _, bad := range []string{"s3://", "http://host/x", "/tmp/x"} {
		if _, err := Open(t.Context(), bad, testOptions()); !errors.Is(err, schema.ErrInvalid) {
			t.Errorf("open %s: %v", bad, err)
		}
	}
}

// TestRequests: what the first sample of a dataset costs, in requests that follow one another.
func TestRequests(t *testing.T) {
	server := startServer(t, objecttest.Config{})
	url := at(server, "bucket")
	found(t, url)
	opts := testOptions()
	opts.Renew, opts.Lapse = time.Hour, 8*time.Hour // none in between
	writer := open(t, url, opts)
	before := server.Counts()
	requests := func(doing string, want int64) {
		t.Helper()
		now := server.Counts()
		if got := now.All() - before.All(); got != want {
			t.Errorf("%s: %d requests, want %d", doing, got, want)
		}
		before = now
	}
	in, err := writer.Begin(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	requests("begin: the process's row, what collections there are, the ingest's registration, once more what there are", 5)
	snap, err := storetest.Put(t.Context(), in, [][]byte{[]byte("a"), []byte("b")}, 8)
	if err != nil {
		t.Fatal(err)
	}
	requests("put", 0)
	if _, err := in.Commit(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	requests("commit: a segment, the partition, the swap and its copy", 4)
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	before = server.Counts()
	reader := open(t, url, opts)
	requests("open: FORMAT and what collections have counted", 2)
	if err := reader.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	requests("ready: the process's row, and what collections there are", 2)
	got, err := reader.Snapshot(t.Context(), "d", 0)
	if err != nil {
		t.Fatal(err)
	}
	requests("the newest snapshot, with its record", 1)
	blobs, err := storetest.Read(t.Context(), reader, got)
	if err != nil || len(blobs) != 2 {
		t.Fatal(blobs, err)
	}
	requests("its only page, and its two blobs", 3)
}

// TestMembersLapse: a row lapses by the server's clock, whatever the clocks of the processes say.
func TestMembersLapse(t *testing.T) {
	server := startServer(t, objecttest.Config{})
	url := at(server, "bucket")
	found(t, url)
	opts := testOptions()
	opts.Renew, opts.Lapse = time.Hour, time.Minute
	s := open(t, url, opts)
	opts.Clock = func() time.Time { return time.Now().Add(100 * time.Hour) }
	other := open(t, url, opts)
	m := protocol.Member{ID: "x", Holder: "some process", Acked: 3, Beat: 1, Holds: []string{"d@1"}}
	sees := func(want string) {
		t.Helper()
		list, err := database{other}.Members(t.Context())
		if got := fmt.Sprint(list); err != nil || got != want {
			t.Errorf("the members are %s (%v), want %s", got, err, want)
		}
	}
	announce := func(beat int64) {
		t.Helper()
		m.Beat = beat
		if err := (database{s}).Announce(t.Context(), m); err != nil {
			t.Error(err)
		}
	}
	announce(1)
	sees(fmt.Sprint([]protocol.Member{m}))
	server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Put}, Times: 1, Lose: true})
	announce(2)
	sees(fmt.Sprint([]protocol.Member{m}))
	// One that comes late does not replace a newer one.
	at := s.members.own["x"]
	announce(3)
	if _, outcome, _ := s.bucket.Put(t.Context(), s.key("mem/x"), []byte("{}"), object.Condition{Version: at}); outcome != object.Moved {
		t.Errorf("a late row was %v", outcome)
	}
	sees(fmt.Sprint([]protocol.Member{m}))
	server.SetClock(30 * time.Second) // the clock runs on from there, too
	sees(fmt.Sprint([]protocol.Member{m}))
	server.SetClock(2 * time.Minute)
	sees("[]")
	announce(4)
	sees(fmt.Sprint([]protocol.Member{m}))
	// A collection forgets rows that lapsed long ago, and a process that comes back writes a new one.
	server.SetClock(3 * time.Minute)
	if err := other.forgetMembers(t.Context()); err != nil || len(server.Keys("bucket")) != 3 {
		t.Errorf("%q (%v)", server.Keys("bucket"), err)
	}
	server.DeleteObject("bucket", "some/where/mem/x")
	announce(5)
	sees(fmt.Sprint([]protocol.Member{m}))
	if err := (database{s}).Leave(t.Context(), "x"); err != nil {
		t.Error(err)
	}
	sees("[]")
}

// TestSegments reads back an import of many segments, some of which had to be written
// again. Locate returns where each blob is stored, and a collection leaves nothing else.
func TestSegments(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	server := startServer(t, objecttest.Config{Seed: seed})
	url := at(server, "bucket")
	found(t, url)
	opts := testOptions()
	opts.SegmentBytes, opts.Uploads = 100_000, 2
	s := open(t, url, opts)
	server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Put}, Prefix: "some/where/seg/", Share: .2, Lose: true})
	server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Put}, Prefix: "some/where/seg/", Share: .1, Status: 503})
	in, err := s.Begin(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	blobs := make([][]byte, 300)
	for i := range blobs {
		blobs[i] = make([]byte, rng.IntN(9000))
		for j := range blobs[i] {
			blobs[i][j] = byte(rng.Uint32())
		}
	}
	blobs[7] = make([]byte, 250_000) // larger than a segment
	snap, err := storetest.Put(t.Context(), in, blobs, 64)
	if err != nil {
		t.Fatal(err)
	}
	made, err := in.Commit(t.Context(), snap)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	server.Heal()
	other := open(t, url, opts)
	read, err := storetest.Read(t.Context(), other, made)
	if err != nil {
		t.Fatal(err)
	}
	for i := range blobs {
		if string(read[i]) != string(blobs[i]) {
			t.Fatalf("blob %d came back changed", i)
		}
	}
	at, ok, err := other.Locate(t.Context(), made.Chunks[0].BlobRef)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	got := make([]byte, at.Length)
	if err := at.Bucket.Range(t.Context(), at.Object.Key, at.Object.Version, at.Offset, got); err != nil || made.Chunks[0].Check(got) != nil {
		t.Errorf("at the place of a chunk there are other bytes (%v)", err)
	}
	segments := 0
	for _, key := range server.Keys("bucket") {
		if strings.HasPrefix(key, "some/where/seg/") {
			segments++
		}
	}
	if segments < 10 {
		t.Errorf("%d segments", segments)
	}
	if err := other.Drop(t.Context(), "d", 0); err != nil {
		t.Fatal(err)
	}
	report, err := other.GC(t.Context(), store.GCOptions{}, nil)
	if err != nil || report.DeadBlobs != int64(segments) || report.FreedBytes != report.DeadBytes {
		t.Errorf("the collection: %+v, %v; want %d dead", report, err, segments)
	}
	for _, key := range server.Keys("bucket") {
		if strings.HasPrefix(key, "some/where/seg/") {
			t.Errorf("%s is left", key)
		}
	}
}

// TestUploadFails: a commit whose segment cannot be written fails, and may be tried again.
func TestUploadFails(t *testing.T) {
	server := startServer(t, objecttest.Config{})
	url := at(server, "bucket")
	found(t, url)
	s := open(t, url, testOptions())
	in, err := s.Begin(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	snap, err := storetest.Put(t.Context(), in, [][]byte{[]byte("a")}, 8)
	if err != nil {
		t.Fatal(err)
	}
	server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Put}, Prefix: "some/where/seg/", Status: 403, Code: "AccessDenied"})
	if _, err := in.Commit(t.Context(), snap); !errors.Is(err, schema.ErrDenied) {
		t.Errorf("commit where segments may not be written: %v", err)
	}
	server.Heal()
	made, err := in.Commit(t.Context(), snap)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := storetest.Read(t.Context(), s, made); err != nil {
		t.Error(err)
	}
}
