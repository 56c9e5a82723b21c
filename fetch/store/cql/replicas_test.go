package cql

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/gocql/gocql"

	"bowstring/fetch"
	importing "bowstring/fetch/ingest"
	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/internal/delay"
	"bowstring/schema"
)

// mockRing starts a cluster of servers, every one of which has every row.
func mockRing(t testing.TB, n int, cells func(key []byte, part int) []byte) (nodes []*mock, port int) {
	t.Helper()
	const tokens = 64 // of each
	step := uint64(math.MaxUint64) / uint64(n*tokens)
	var ips []string
	for i := range n {
		ips = append(ips, fmt.Sprintf("127.0.0.%d", i+1))
	}
	port = freePort(t)
	for _, ip := range ips {
		m := &mock{do: well, cells: cells, replicas: n, tokens: func(member net.IP) (list []string) {
			for i := range tokens {
				list = append(list, strconv.FormatInt(math.MinInt64+int64(step*uint64(i*n+int(member[3]))), 10))
			}
			return list
		}}
		m.peers = slices.DeleteFunc(slices.Clone(ips), func(other string) bool { return other == ip })
		nodes = append(nodes, startMock(t, m, ip, port))
	}
	return nodes, port
}

// late is after how long a slow node answers.
const late = 400 * time.Millisecond

// TestReplicasOfServers: reads go to the servers by thirds, from one that is slow to
// the others, and back when it is quick again.
func TestReplicasOfServers(t *testing.T) {
	cell := []byte("bowstring")
	nodes, port := mockRing(t, 3, func([]byte, int) []byte { return cell })
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2,127.0.0.3/mock?conns=6", port))
	if n := s.steering.replicas.Load(); n != 3 {
		t.Fatalf("the store knows of %d replicas, want 3", n)
	}
	counts := func() (n [3]int) {
		for i, m := range nodes {
			n[i] = len(m.reads())
		}
		return n
	}
	keys := 0
	// read makes n reads of different blobs, some at once.
	read := func(n int) (shares [3]float64) {
		before := counts()
		var g sync.WaitGroup
		const atOnce = 16
		for w := range atOnce {
			g.Go(func() {
				for i := w; i < n; i += atOnce {
					ref := schema.RefOf(fmt.Append(nil, keys+i))
					ref.Size, ref.Sum = int64(len(cell)), schema.Checksum(cell)
					b, err := s.get(t.Context(), ref)
					if err != nil {
						t.Error(err)
						return
					}
					b.Release()
				}
			})
		}
		g.Wait()
		keys += n
		after := counts()
		for i := range shares {
			shares[i] = float64(after[i]-before[i]) / float64(n)
		}
		return shares
	}
	// A busy machine makes the servers slow for a moment. So each of these waits for the
	// expected state, and the test hangs if it does not come.
	even := func() {
		for shares := read(3000); slices.Min(shares[:]) < 0.28; shares = read(3000) {
			t.Logf("the servers get %.2f of the reads, which are to be thirds", shares)
		}
	}
	even()
	slow := s.steering.host(s.steering.hostAt("127.0.0.3"))
	nodes[2].latency.Store(int64(late))
	for slow.share.Load() > 0 {
		read(160)
	}
	for shares := read(3000); shares[2] > 0.01; shares = read(3000) {
		t.Logf("the servers get %.3f of the reads, and the last one is to get next to none", shares)
	}
	nodes[2].latency.Store(0)
	for s.steering.partial.Load() > 0 {
		read(160)
	}
	even()
}

// hostAt finds one that reads were sent to.
func (st *steering) hostAt(address string) *gocql.HostInfo {
	for h := range st.known() {
		if strings.HasPrefix(st.name(h.info), address) {
			return h.info
		}
	}
	return nil
}

// apart is a store whose samples' blobs come from another one.
type apart struct {
	store.Store
	blobs map[schema.Key][]byte
	cql   *Store
}

func (s *apart) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if s.blobs[ref.Key] != nil {
		return s.cql.get(ctx, ref)
	}
	return s.Store.Get(ctx, ref)
}

// newApart is a dataset of blobs of one size.
func newApart(tb testing.TB, rows, size int) *apart {
	tb.Helper()
	catalog, err := local.Open(tb.TempDir(), local.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := catalog.Close(); err != nil {
			tb.Error(err)
		}
	})
	sch, err := schema.NewSchema([]arrow.Field{{Name: "label", Type: arrow.PrimitiveTypes.Int64}},
		[]arrow.Field{schema.BlobField("image", "", false)})
	if err != nil {
		tb.Fatal(err)
	}
	w, err := importing.New(tb.Context(), catalog, importing.Options{Dataset: "d", Source: "test", Schema: sch,
		Mode: importing.Replace})
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Close()
	s := &apart{Store: catalog, blobs: map[schema.Key][]byte{}}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(sch), nil))
	defer b.Release()
	var ids []schema.ID
	var images [][]byte
	for i := range rows {
		image := fmt.Appendf(make([]byte, 0, size), "%d", i)[:size]
		ref := schema.RefOf(image)
		s.blobs[ref.Key] = image
		ids = append(ids, schema.ID(ref.Key[:16]))
		images = append(images, image)
		b.Field(0).(*array.Int64Builder).Append(int64(i))
	}
	rec := b.NewRecord()
	defer rec.Release()
	if err := w.Write(tb.Context(), "train", ids, rec, [][][]byte{images}); err != nil {
		tb.Fatal(err)
	}
	if _, _, err := w.Commit(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return s
}

// BenchmarkReplicas streams epochs from servers 20 ms away, alternating between two of them and the same two with a
// third that answers in 400 ms. share_of_healthy is the throughput with the third relative to that without, after the
// seconds of detection.
func BenchmarkReplicas(b *testing.B) {
	const (
		size      = 110_000
		rtt       = 20 * time.Millisecond
		bandwidth = 80e6 // less than the processors of a small machine can do
	)
	rows, settle, measured := 4000, 4*time.Second, 6*time.Second
	if testing.Short() {
		rows, settle, measured = 400, time.Second, time.Second
	}
	rates := map[int]float64{}
	for range b.N {
		for _, n := range []int{2, 3} {
			rates[n] += func() float64 {
				data := newApart(b, rows, size)
				nodes, port := mockRing(b, n, func(key []byte, _ int) []byte { return data.blobs[schema.Key(key)] })
				link := delay.New(delay.Config{RTT: rtt, Bandwidth: bandwidth})
				defer link.Close()
				data.cql = mockStoreOver(b, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2/mock?timeout=30s", port), link)
				if n == 3 {
					nodes[2].latency.Store(int64(late - rtt))
				}
				return streamRate(b, data, settle, measured)
			}()
		}
	}
	b.ReportMetric(rates[3]/rates[2], "share_of_healthy")
	b.ReportMetric(rates[2]/float64(b.N)/1e6, "healthy_MB/s")
	b.ReportMetric(rates[3]/float64(b.N)/1e6, "with_slow_MB/s")
}

// streamRate streams shuffled epochs, and returns the bytes a second after some time.
func streamRate(b *testing.B, s store.Store, settle, measured time.Duration) float64 {
	b.Helper()
	engine, err := fetch.NewEngine(s, fetch.Options{Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Close()
	job, err := engine.Open(b.Context(), schema.Request{Dataset: "d", Shuffle: &schema.Shuffle{Seed: 7}, Batch: 64})
	if err != nil {
		b.Fatal(err)
	}
	defer job.Close()
	stream, err := engine.Stream(b.Context(), job, schema.Ticket{Request: job.Request(), Epochs: schema.MaxEpochs})
	if err != nil {
		b.Fatal(err)
	}
	defer stream.Close()
	began := time.Now()
	var bytes int64
	for {
		batch, err := stream.Next()
		if err != nil {
			b.Fatal(err)
		}
		since := time.Since(began)
		if since > settle {
			for _, blob := range batch.Blobs[0] {
				bytes += int64(len(blob.Bytes()))
			}
		}
		batch.Release()
		if since > settle+measured {
			return float64(bytes) / (since - settle).Seconds()
		}
	}
}
