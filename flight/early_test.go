package flight

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"

	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/flight/audit"
	"bowstring/schema"
)

// farStore is a store with a slow catalog. While it has a gate, the catalog answers when
// the gate is opened.
type farStore struct {
	*local.Store
	gate atomic.Pointer[gate]
}

type gate struct {
	read chan struct{} // gets one for each blob that is read
	open chan struct{} // closed when the catalog may answer
}

func (s *farStore) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	time.Sleep(10 * time.Millisecond)
	if g := s.gate.Load(); g != nil {
		<-g.open
	}
	return s.Store.Snapshot(ctx, dataset, number)
}

func (s *farStore) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if g := s.gate.Load(); g != nil {
		select {
		case g.read <- struct{}{}:
		default:
		}
	}
	return s.Store.Get(ctx, ref)
}

// serveFar serves a dataset d of 100 samples from a far store. It has been read once.
func serveFar(t *testing.T, opts Options) (*fixture, *farStore) {
	t.Helper()
	far := &farStore{}
	f := serveOver(t, opts, func(s *local.Store) store.Store {
		far.Store = s
		return far
	})
	f.fill("d", 100)
	f.gets(`{"dataset":"d","columns":["position"],"batch":50}`, 100)
	return f, far
}

// gets reads a ticket. One stream must bring that number of different rows.
func (f *fixture) gets(ticket string, rows int) {
	f.t.Helper()
	streams := func() int64 {
		_, sums, _, _ := f.server.calls.snapshot(nil, true)
		return sums.Streams
	}
	before := streams()
	got, err := f.deliveries([]byte(ticket))
	if err != nil {
		f.t.Fatal(err)
	}
	var all []int64
	for _, d := range got {
		all = append(all, d.positions...)
	}
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != rows || len(all) != n {
		f.t.Errorf("%s: %d rows, %d of them different, want %d", ticket, len(all), n, rows)
	}
	if n := streams() - before; n != 1 {
		f.t.Errorf("%s: counted as %d streams", ticket, n)
	}
}

// replace commits a snapshot of d that has n samples.
func (f *fixture) replace(n int) {
	f.t.Helper()
	_, err := f.put(command(`{"put": {"dataset": "d", "key": "file_name", "mode": "replace", "media": {"image": "image"}}}`),
		samples(0, n))
	if err != nil {
		f.t.Fatal(err)
	}
}

// TestEarly: blobs are read before a slow catalog has answered which snapshot is the
// newest. The client gets nothing before that.
func TestEarly(t *testing.T) {
	f, far := serveFar(t, Options{})
	g := &gate{read: make(chan struct{}, 100), open: make(chan struct{})}
	far.gate.Store(g)
	stream, err := f.client.DoGet(t.Context(), &flight.Ticket{
		Ticket: []byte(`{"dataset":"d","columns":["image"],"shuffle":{"seed":5},"batch":16}`)})
	if err != nil {
		t.Fatal(err)
	}
	var answered atomic.Bool
	received := make(chan error, 1)
	go func() {
		_, err := stream.Recv()
		if !answered.Load() {
			t.Error("the client gets something before the catalog has answered")
		}
		received <- err
	}()
	for range 100 {
		<-g.read
	}
	for range 20 { // the number of calls after which the first message is ready
		actions, err := f.client.ListActions(t.Context(), &flight.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = actions.Recv()
		}
	}
	answered.Store(true)
	close(g.open)
	if err := <-received; err != nil {
		t.Error(err)
	}
}

// TestEarlyOfAnother: where the newest snapshot is not the one that was taken for it, the client gets the newest alone,
// and whatever is wrong is wrong of that one.
func TestEarlyOfAnother(t *testing.T) {
	f, _ := serveFar(t, Options{})
	f.replace(200)
	f.gets(`{"dataset":"d","columns":["position"],"batch":16,"order":"free","step":6,"row":3,"served":"Aw=="}`, 99)
	f.replace(100)
	f.gets(`{"dataset":"d","columns":["position","image"],"shuffle":{"seed":5},"batch":16}`, 100)
	f.replace(300)
	f.gets(`{"dataset":"d","columns":["position","image"],"selection":{"positions":[250]},"batch":16}`, 1)
	f.replace(400)
	f.gets(`{"dataset":"d","columns":["position","image"],"batch":100,"step":3}`, 100)
	f.replace(100)
	_, err := f.deliveries([]byte(`{"dataset":"d","columns":["position","image"],"batch":100,"step":3}`))
	wantCode(t, err, codes.InvalidArgument, "step")
	f.replace(200)
	if err := f.store.Drop(t.Context(), "d", 7); err != nil {
		t.Fatal(err)
	}
	f.gets(`{"dataset":"d","columns":["position","image"],"batch":16}`, 100)
	_, err = f.deliveries([]byte(`{"dataset":"d","columns":["position","image"],"batch":16,"snapshot":7}`))
	wantCode(t, err, codes.NotFound, "7")
	if err := f.store.Drop(t.Context(), "d", 0); err != nil {
		t.Fatal(err)
	}
	_, err = f.deliveries([]byte(`{"dataset":"d","columns":["position","image"],"batch":16}`))
	wantCode(t, err, codes.NotFound, "d")
	if err := f.server.Shutdown(t.Context()); err != nil { // all calls are in the log
		t.Fatal(err)
	}
	for line := range strings.Lines(f.log.String()) {
		if strings.Contains(line, "code=NotFound") && strings.Contains(line, "plan=") {
			t.Errorf("the log names a plan of a snapshot that is not there: %s", line)
		}
	}
}

// TestEarlyAudited: the audit log has no snapshot that the caller did not mean, whatever becomes of the call.
func TestEarlyAudited(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(audit.Options{Path: file, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	f, _ := serveFar(t, Options{Audit: log}) // reads snapshot 1
	f.replace(200)
	const ticket = `{"dataset":"d","columns":["position"],"batch":100}`
	f.gets(ticket, 200)
	if err := f.store.Drop(t.Context(), "d", 0); err != nil {
		t.Fatal(err)
	}
	_, err = f.deliveries([]byte(ticket))
	wantCode(t, err, codes.NotFound, "d")
	if err := f.server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	read := map[string][]int64{}
	for _, e := range lines(t, file) {
		if e.Event == audit.Read {
			read[e.Phase] = append(read[e.Phase], e.Snapshot)
		}
	}
	for _, phase := range []string{audit.Begin, audit.Done} {
		if !slices.Equal(read[phase], []int64{1, 2}) {
			t.Errorf("the audit log says that snapshots %v were read (%s), want 1 and 2", read[phase], phase)
		}
	}
}
