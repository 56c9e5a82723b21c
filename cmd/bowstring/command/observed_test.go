package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"bowstring/cmd/bowstring/metrics"
	"bowstring/fetch"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	ourflight "bowstring/flight"
	"bowstring/schema"
	"bowstring/spill"
)

// trouble is what a store has that a real one cannot be made to have on time.
type trouble int32

const (
	none     trouble = iota
	slow             // a read takes some milliseconds
	silent           // a read never ends
	away             // it is unavailable
	damaging         // a blob has a wrong byte
)

// troubled is a store whose blobs of datasets, not of manifests, come with trouble.
type troubled struct {
	store.Store
	now atomic.Int32
}

// Traits has the engine check the blobs as it reads them: those with a wrong byte are in
// no file.
func (s *troubled) Traits() store.Traits {
	traits := s.Store.Traits()
	traits.Mapped = false
	return traits
}

func (s *troubled) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	switch trouble(s.now.Load()) {
	case slow:
		select { // what a store far away is: no test waits for this to be over
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	case silent:
		<-ctx.Done()
		return schema.Blob{}, context.Cause(ctx)
	case away:
		return schema.Blob{}, fmt.Errorf("%w: the test has it away", schema.ErrUnavailable)
	case damaging:
		b, err := s.Store.Get(ctx, ref)
		if err != nil {
			return b, err
		}
		wrong := bytes.Clone(b.Bytes())
		b.Release()
		wrong[len(wrong)/2] ^= 1
		return schema.NewBlob(wrong, nil), nil
	}
	return s.Store.Get(ctx, ref)
}

// quiet drops what is logged of the trouble.
var quiet = slog.New(slog.DiscardHandler)

// observed is a server that is scraped.
type observed struct {
	t        *testing.T
	store    *troubled
	engine   *fetch.Engine
	server   *ourflight.Server
	registry *prometheus.Registry
	client   flight.Client
}

// observedOptions say what is unusual about a server.
type observedOptions struct {
	spill        *spill.Options
	flight       ourflight.Options
	engine       fetch.Options
	collections  *metrics.Collections
	certificates func() map[string]time.Time
	sources      func() map[string]bool
	memoryLimit  int64
	cluster      func() *metrics.Cluster
}

const observedRows = 60

func newObserved(t *testing.T, opts observedOptions) *observed {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if err := makeDataset(dir, "photos", observedRows, 2000); err != nil {
		t.Fatal(err)
	}
	real, err := local.Open(dir, local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := &observed{t: t, store: &troubled{Store: real}}
	opts.engine.Logger, opts.flight.Logger = quiet, quiet
	var cache *spill.Cache
	if opts.spill != nil {
		opts.engine.Future = &spill.Future{}
		opts.spill.Logger = quiet
		if cache, err = spill.Open(*opts.spill); err != nil {
			t.Fatal(err)
		}
		opts.engine.Spill = cache
	}
	if o.engine, err = fetch.NewEngine(o.store, opts.engine); err != nil {
		t.Fatal(err)
	}
	collector, err := metrics.New(metrics.Options{
		Stats: func() ourflight.Stats { return o.server.Stats() }, Times: o.times(opts), Collections: opts.collections,
		Certificates: opts.certificates, Sources: opts.sources, MemoryLimit: opts.memoryLimit, Cluster: opts.cluster,
		AdminGuesses: func() (wrong, limited int64) { return 2, 1 }, Version: "test",
		GoVersion: "go",
	})
	if err != nil {
		t.Fatal(err)
	}
	opts.flight.Observer, opts.flight.Ledger = collector, o.engine.Ledger()
	o.server = ourflight.New(o.engine, opts.flight)
	o.registry = prometheus.NewPedanticRegistry()
	o.registry.MustRegister(collector, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	pipe := bufconn.Listen(pipeBytes)
	served := make(chan error, 1)
	go func() { served <- o.server.Serve(pipe) }()
	conn, err := grpc.NewClient("passthrough:///observed", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	o.client = flight.NewClientFromConn(conn, nil)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // at once: what still runs is of no interest
		_ = conn.Close()
		_ = o.server.Shutdown(ctx) // streams are cut off
		if err := errors.Join(<-served, o.engine.Close()); err != nil {
			t.Error(err)
		}
		if cache != nil {
			if err := cache.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := real.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

// times are the engine's; a node of a cluster has those of other nodes, too.
func (o *observed) times(opts observedOptions) func() []fetch.Times {
	return func() []fetch.Times {
		list := o.engine.Times()
		if opts.cluster != nil {
			list = append(list, peerTimes(100, time.Millisecond))
		}
		return list
	}
}

// read reads a whole stream and returns how many rows there were.
func (o *observed) read(ctx context.Context, req schema.Request, tenant string) (rows int64, err error) {
	o.t.Helper()
	return readRows(ctx, o.client, req, tenant)
}

// readRows counts the rows of an epoch as a tenant gets it.
func readRows(ctx context.Context, client flight.Client, req schema.Request, tenant string) (rows int64, err error) {
	if tenant != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "bowstring-tenant", tenant)
	}
	stream, err := client.DoGet(ctx, &flight.Ticket{Ticket: schema.Ticket{Request: req}.Marshal()})
	if err != nil {
		return 0, err
	}
	reader, err := flight.NewRecordReader(stream)
	if err != nil {
		return 0, err
	}
	defer reader.Release()
	for reader.Next() {
		rows += reader.Record().NumRows()
	}
	return rows, reader.Err()
}

func (o *observed) mustRead(n int) {
	o.t.Helper()
	for epoch := range n {
		req := schema.Request{Dataset: "photos", Batch: 16, Shuffle: &schema.Shuffle{Epoch: uint64(epoch)}}
		if rows, err := o.read(o.t.Context(), req, "team"); err != nil || rows != observedRows {
			o.t.Fatalf("epoch %d gave %d rows of %d, then %v", epoch, rows, observedRows, err)
		}
	}
}

// scrape returns what Prometheus would see.
func (o *observed) scrape() []*dto.MetricFamily {
	o.t.Helper()
	families, err := o.registry.Gather()
	if err != nil {
		o.t.Fatal(err)
	}
	return families
}

// spillIn are the options of a spill that has room for all.
func spillIn(dir string) *spill.Options {
	return &spill.Options{Dir: dir, Bytes: spill.MinBytes + (16 << 20), KeepFree: 1}
}
