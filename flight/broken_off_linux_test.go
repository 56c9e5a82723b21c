package flight

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/flight/auth"
	"bowstring/flight/shm"
	"bowstring/internal/shmtest"
	"bowstring/schema"
)

// remoteStore behaves like a database: a blob is a copy in its own memory and arrives after
// a delay. out counts the blobs that were not released.
type remoteStore struct {
	store.Store
	out atomic.Int64
}

// Get implements store.Store.
func (s *remoteStore) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
		return schema.Blob{}, context.Cause(ctx)
	}
	b, err := s.Store.Get(ctx, ref)
	if err != nil {
		return b, err
	}
	defer b.Release()
	s.out.Add(1)
	return schema.NewBlob(bytes.Clone(b.Bytes()), counted{&s.out}), nil
}

// kept counts what a server and its process hold for streams.
type kept struct {
	window, held, pinned, blobs int64
	rings, inFlight, streams    int
	goroutines, descriptors     int
}

// breaking breaks off streams of a server.
type breaking struct {
	*fixture
	local  *shm.Server
	remote *remoteStore // nil over an embedded store
}

// running counts the goroutines of this process and describes them. Idle goroutines of the
// reader of tiers are not counted: it keeps as many as there were concurrent reads.
func running() (n int, what string) {
	var text strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&text, 1)
	for _, group := range strings.Split(text.String(), "\n\n") {
		if _, rest, ok := strings.Cut(group, "goroutine profile: total "); ok {
			_, group, _ = strings.Cut(rest, "\n")
		}
		var count int
		if _, err := fmt.Sscanf(group, "%d @", &count); err == nil && !strings.Contains(group, "read.(*Reader).work") {
			n += count
			what += group + "\n\n"
		}
	}
	return n, what
}

func (b *breaking) kept() kept {
	b.t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		b.t.Fatal(err)
	}
	st := b.engine.Stats()
	k := kept{window: st.WindowUsed, inFlight: st.ReadsInFlight, streams: st.LiveStreams,
		descriptors: len(files)}
	k.goroutines, _ = running()
	if b.local != nil {
		shared := b.local.Stats()
		k.held, k.pinned, k.rings = shared.Held, shared.Pinned, shared.Rings
	}
	if b.remote != nil {
		k.blobs = b.remote.out.Load() - int64(st.Snapshots) // the manifest of each has one blob
	}
	return k
}

// settled waits until the server holds no more than before.
func (b *breaking) settled(way string, before kept) {
	b.t.Helper()
	var now kept
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		now = b.kept()
		more := now
		more.goroutines, more.descriptors = max(before.goroutines, now.goroutines),
			max(before.descriptors, now.descriptors)
		if more == before {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	_, what := running()
	b.t.Fatalf("%s: %+v, and before %+v\n%s", way, now, before, what)
}

// connected is a connection of its own.
func (b *breaking) connected() (c flight.Client, conn *net.TCPConn) {
	b.t.Helper()
	there := make(chan *net.TCPConn, 1)
	c, err := flight.NewClientWithMiddleware(b.addr, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			d, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if tcp, ok := d.(*net.TCPConn); ok {
				select {
				case there <- tcp:
				default: // the link dials again after the call's end
				}
			}
			return d, err
		}))
	if err != nil {
		b.t.Fatal(err)
	}
	stream := b.begun(b.t.Context(), c)
	b.take(stream)
	return c, <-there
}

// ticket is of more epochs than anybody reads.
func (b *breaking) ticket(i int) *flight.Ticket {
	return &flight.Ticket{Ticket: fmt.Appendf(nil,
		`{"dataset": "few", "batch": 50, "shuffle": {"seed": %d}, "epochs": 1000}`, i)}
}

func (b *breaking) begun(ctx context.Context, c flight.Client) flight.FlightService_DoGetClient {
	b.t.Helper()
	stream, err := c.DoGet(ctx, b.ticket(1))
	if err != nil {
		b.t.Fatal(err)
	}
	return stream
}

// take takes the schema and some batches.
func (b *breaking) take(stream flight.DataStreamReader) {
	b.t.Helper()
	for range 3 {
		if _, err := stream.Recv(); err != nil {
			b.t.Fatal(err)
		}
	}
}

// ways are the ways to break a stream off, without TLS.
func (b *breaking) ways() map[string]func() {
	cancelled := func(ctx context.Context, c flight.Client) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		b.take(b.begun(ctx, c))
	}
	return map[string]func(){
		"cancel": func() { cancelled(b.t.Context(), b.client) },
		"deadline": func() {
			ctx, cancel := context.WithTimeout(b.t.Context(), 30*time.Millisecond)
			defer cancel()
			stream, err := b.client.DoGet(ctx, b.ticket(2))
			for err == nil {
				_, err = stream.Recv()
			}
		},
		"close": func() {
			c, _ := b.connected()
			_ = c.Close()
		},
		"cut": func() { // by a reset, as of a client that was killed
			c, conn := b.connected()
			_ = conn.SetLinger(0)
			_ = conn.Close()
			_ = c.Close()
		},
		"unread": func() { // all windows are full
			c, conn := b.connected()
			_ = conn.SetReadBuffer(4 << 10)
			stream := b.begun(b.t.Context(), c)
			if _, err := stream.Header(); err != nil {
				b.t.Fatal(err)
			}
			_ = c.Close()
		},
		"killed by the server": func() {
			stream := b.begun(b.t.Context(), b.client)
			_, err := stream.Recv() // others may have killed it already
			b.server.calls.kill(errCancelled, func(c *call) bool { return c.streamed })
			for err == nil {
				_, err = stream.Recv()
			}
		},
		"operators": func() {
			ctx, cancel := context.WithCancel(b.t.Context())
			defer cancel()
			stream, err := b.client.DoGet(ctx, &flight.Ticket{Ticket: []byte(
				`{"dataset": "p", "batch": 4, "on_error": "skip", "epochs": 1000, "place": "server", ` + cropped + `}`)})
			if err != nil {
				b.t.Fatal(err)
			}
			b.take(stream)
		},
		"exchange": func() {
			ctx, cancel := context.WithCancel(b.t.Context())
			defer cancel()
			x := b.exchange(ctx, command(`{"take": {"dataset": "few"}}`), positionSchema)
			list := make([]int64, 500)
			for i := range list {
				list[i] = int64(i)
			}
			for range 3 {
				if err := x.ask(positions(list...)); err != nil {
					b.t.Fatal(err)
				}
			}
			if _, err := x.stream.Recv(); err != nil {
				b.t.Fatal(err)
			}
		},
		"upload": func() {
			ctx, cancel := context.WithCancel(b.t.Context())
			defer cancel()
			stream, err := b.client.DoPut(ctx)
			if err != nil {
				b.t.Fatal(err)
			}
			rec := samples(0, 100)
			defer rec.Release()
			w := flight.NewRecordWriter(stream, ipc.WithSchema(rec.Schema()))
			w.SetFlightDescriptor(command(`{"put": {"dataset": "never", "key": "file_name"}}`))
			if err := w.Write(rec); err != nil {
				b.t.Fatal(err)
			}
		},
		"ring": func() {
			g, err := shmtest.Visit(b.local.Path(), "", b.local.Key(""))
			if err != nil {
				b.t.Fatal(err)
			}
			defer g.Close()
			cancelled(metadata.AppendToOutgoingContext(b.t.Context(), ringHeader, g.Ring+"/1", referencesHeader, "1"),
				b.client)
		},
	}
}

// TestBrokenOff: streams are broken off in every way, over every kind of store, alone and
// many at once. Nothing of them remains: no memory of windows, no pin, no read, no ring, no
// goroutine, no descriptor. No garbage collection is needed for that.
func TestBrokenOff(t *testing.T) {
	const rounds, atOnce = 2, 3
	for _, name := range []string{"embedded", "remote", "tls"} {
		t.Run(name, func(t *testing.T) {
			b := newBreaking(t, name)
			ways := b.ways()
			if name == "tls" {
				maps.DeleteFunc(ways, func(way string, _ func()) bool { // the others dial for themselves
					return slices.Contains([]string{"close", "cut", "unread"}, way)
				})
			}
			for _, way := range slices.Sorted(maps.Keys(ways)) {
				ways[way]() // creates what exists once for a process
			}
			b.settled("all", kept{goroutines: 1 << 20, descriptors: 1 << 20})
			before := b.kept()
			for _, way := range slices.Sorted(maps.Keys(ways)) {
				for range rounds {
					var all sync.WaitGroup
					for range atOnce {
						all.Go(ways[way])
					}
					all.Wait()
				}
				b.settled(way, before)
			}
		})
	}
}

func newBreaking(t *testing.T, name string) *breaking {
	b := &breaking{}
	opts := Options{MaxCallsPerConnection: 100}
	var err error
	if b.local, err = shm.Listen(shm.Options{Path: filepath.Join(t.TempDir(), "s"), RingBytes: 9 << 20,
		References: true, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.local.Close(); err != nil {
			t.Error(err)
		}
	})
	opts.Shm = b.local
	switch name {
	case "tls":
		b.fixture, _ = newLogins(t, func(o *auth.Options) { o.Poll, o.Recheck = time.Hour, time.Hour }).serve(opts)
	case "remote":
		b.fixture = serveOver(t, opts, func(s *local.Store) store.Store {
			b.remote = &remoteStore{Store: s}
			return b.remote
		})
	default:
		b.fixture = serve(t, opts)
	}
	b.fill("few", 600)
	b.pictures(9)
	return b
}
