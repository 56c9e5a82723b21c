//go:build cassandra && !race

// The mock's library has races of its own, between closing a connection and
// sending on it; what is tested here is also under the race detector elsewhere.

package cql

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/datastax/go-cassandra-native-protocol/client"
	"github.com/datastax/go-cassandra-native-protocol/datatype"
	"github.com/datastax/go-cassandra-native-protocol/frame"
	"github.com/datastax/go-cassandra-native-protocol/message"
	"github.com/datastax/go-cassandra-native-protocol/primitive"
	"github.com/gocql/gocql"

	"bowstring/schema"
)

// mock is a server that does what a real one cannot be made to do. It has one
// blob, of which every part is asked for by a prepared statement.
type mock struct {
	addr string
	peer string // the address of the other server of the cluster, if there is one
	blob []byte

	mu     sync.Mutex
	levels []primitive.ConsistencyLevel // of the reads so far
	shards map[int]int                  // connections to each shard, through the port that is aware of them
}

// deed is what a mock does with a read.
type deed struct {
	answer message.Message // in place of the blob
	hang   bool            // no answer
	cut    bool            // close the connection in the middle of the answer
	arrive func()          // called first
}

// port that is free on several addresses of the loopback interface.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// startMock runs a server until the end of the test. do says what to do with
// the nth read, from 1. With shards, the server is a Scylla of so many, and
// aware of them on the port awarePort.
func startMock(t *testing.T, ip string, port, shards, awarePort int, do func(n int) deed) *mock {
	t.Helper()
	m := &mock{addr: net.JoinHostPort(ip, strconv.Itoa(port)), blob: bytes.Repeat([]byte("bow"), 40_000), shards: map[int]int{}}
	ports := []int{port}
	if shards > 0 {
		ports = append(ports, awarePort)
	}
	for _, p := range ports {
		server := client.NewCqlServer(net.JoinHostPort(ip, strconv.Itoa(p)), nil)
		server.RequestHandlers = []client.RequestHandler{
			func(r *frame.Frame, c *client.CqlServerConnection, _ client.RequestHandlerContext) *frame.Frame {
				return m.handle(r, c, shards, awarePort, do)
			},
			client.HandshakeHandler, client.RegisterHandler, client.NewSetKeyspaceHandler(func(string) {}),
			m.topology,
			func(r *frame.Frame, _ *client.CqlServerConnection, _ client.RequestHandlerContext) *frame.Frame {
				if r.Header.OpCode != primitive.OpCodeQuery {
					return nil
				}
				// The driver's other questions, about keyspaces and tables, have no answer.
				return frame.NewFrame(r.Header.Version, r.Header.StreamId, &message.RowsResult{Metadata: &message.RowsMetadata{}, Data: message.RowSet{}})
			},
		}
		if err := server.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Close() })
	}
	return m
}

// topology answers what drivers ask about the members of the cluster. A
// member's last byte of the address is in all that tells it from the others.
func (m *mock) topology(r *frame.Frame, c *client.CqlServerConnection, _ client.RequestHandlerContext) *frame.Frame {
	query, ok := r.Body.Message.(*message.Query)
	if !ok || !strings.Contains(query.Query, "FROM system.") {
		return nil
	}
	reply := func(answer message.Message) *frame.Frame {
		return frame.NewFrame(r.Header.Version, r.Header.StreamId, answer)
	}
	var members []string
	address := "rpc_address"
	switch {
	case strings.Contains(query.Query, "system.local"):
		members = []string{c.LocalAddr().(*net.TCPAddr).IP.String()}
	case m.peer != "":
		members, address = []string{m.peer}, "native_address"
	}
	port := binary.BigEndian.AppendUint32(nil, uint32(c.LocalAddr().(*net.TCPAddr).Port))
	names := []string{"peer", "broadcast_address", address, "native_port", "data_center", "rack", "host_id", "schema_version", "release_version", "partitioner", "tokens"}
	types := []datatype.DataType{
		datatype.Inet, datatype.Inet, datatype.Inet, datatype.Int, datatype.Varchar, datatype.Varchar, datatype.Uuid, datatype.Uuid,
		datatype.Varchar, datatype.Varchar, datatype.NewSet(datatype.Varchar),
	}
	answer := &message.RowsResult{Metadata: &message.RowsMetadata{ColumnCount: int32(len(names))}}
	for i := range names {
		answer.Metadata.Columns = append(answer.Metadata.Columns, &message.ColumnMetadata{Keyspace: "system", Table: "local", Name: names[i], Type: types[i]})
	}
	for _, member := range members {
		ip := net.ParseIP(member).To4()
		id := bytes.Repeat([]byte{1}, 16)
		id[15] = ip[3]
		token := strconv.Itoa(int(ip[3]))
		tokens := append([]byte{0, 0, 0, 1, 0, 0, 0, byte(len(token))}, token...)
		answer.Data = append(answer.Data, message.Row{
			ip, ip, ip, port, []byte("dc1"), []byte("rack1"), id, bytes.Repeat([]byte{2}, 16),
			[]byte("3.11.2"), []byte("org.apache.cassandra.dht.Murmur3Partitioner"), tokens,
		})
	}
	return reply(answer)
}

func (m *mock) handle(r *frame.Frame, c *client.CqlServerConnection, shards, awarePort int, do func(n int) deed) *frame.Frame {
	reply := func(answer message.Message) *frame.Frame {
		return frame.NewFrame(r.Header.Version, r.Header.StreamId, answer)
	}
	columns := []*message.ColumnMetadata{{Keyspace: "mock", Table: tableParts, Name: "data", Type: datatype.Blob}}
	switch msg := r.Body.Message.(type) {
	case *message.Options:
		if shards > 0 {
			return reply(m.supported(c, shards, awarePort))
		}
	case *message.Prepare:
		return reply(&message.PreparedResult{
			PreparedQueryId: []byte{1},
			VariablesMetadata: &message.VariablesMetadata{PkIndices: []uint16{0, 1}, Columns: []*message.ColumnMetadata{
				{Keyspace: "mock", Table: tableParts, Name: "key", Type: datatype.Blob},
				{Keyspace: "mock", Table: tableParts, Name: "part", Type: datatype.Int},
			}},
			ResultMetadata: &message.RowsMetadata{ColumnCount: 1, Columns: columns},
		})
	case *message.Execute:
		m.mu.Lock()
		m.levels = append(m.levels, msg.Options.Consistency)
		n := len(m.levels)
		m.mu.Unlock()
		d := do(n)
		if d.arrive != nil {
			d.arrive()
		}
		answer := reply(&message.RowsResult{
			Metadata: &message.RowsMetadata{ColumnCount: 1, Columns: columns}, Data: message.RowSet{message.Row{m.blob}},
		})
		switch {
		case d.hang:
			return nil
		case d.cut:
			var b bytes.Buffer
			if err := frame.NewCodec().EncodeFrame(answer, &b); err != nil {
				panic(err)
			}
			_, _ = c.GetConn().Write(b.Bytes()[:b.Len()/2])
			_ = c.GetConn().Close()
			return nil
		case d.answer != nil:
			return reply(d.answer)
		}
		return answer
	}
	return nil
}

// supported are the options of a Scylla node. A connection to the port that is
// aware of shards goes to the one that its own port says.
func (m *mock) supported(c *client.CqlServerConnection, shards, awarePort int) *message.Supported {
	shard := 0
	if c.LocalAddr().(*net.TCPAddr).Port == awarePort {
		shard = c.RemoteAddr().(*net.TCPAddr).Port % shards
		m.mu.Lock()
		m.shards[shard]++
		m.mu.Unlock()
	}
	return &message.Supported{Options: map[string][]string{
		"CQL_VERSION": {"3.0.0"}, "COMPRESSION": {},
		"SCYLLA_SHARD": {strconv.Itoa(shard)}, "SCYLLA_NR_SHARDS": {strconv.Itoa(shards)},
		"SCYLLA_PARTITIONER":         {"org.apache.cassandra.dht.Murmur3Partitioner"},
		"SCYLLA_SHARDING_ALGORITHM":  {"biased-token-round-robin"},
		"SCYLLA_SHARDING_IGNORE_MSB": {"12"}, "SCYLLA_SHARD_AWARE_PORT": {strconv.Itoa(awarePort)},
	}}
}

func (m *mock) reads() []primitive.ConsistencyLevel {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.levels)
}

// pair of servers that are one cluster.
func mockPair(t *testing.T, first, second func(n int) deed) (a, b *mock, port int) {
	t.Helper()
	port = freePort(t)
	a = startMock(t, "127.0.0.1", port, 0, 0, first)
	b = startMock(t, "127.0.0.2", port, 0, 0, second)
	a.peer, b.peer = "127.0.0.2", "127.0.0.1" // before anyone connects
	return a, b, port
}

// mockStore is a store on mocks, which is good for Get.
func mockStore(t *testing.T, uri string) *Store {
	t.Helper()
	config, err := ParseURI(uri)
	if err != nil {
		t.Fatal(err)
	}
	s := &Store{config: config, options: Options{Logger: quiet}, log: quiet, dc: "dc1"}
	s.foreign.tables.Store(&map[[prefixLen]byte]*foreignTable{})
	if s.db, err = s.session(t.Context(), config.Keyspace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.db.Close)
	return s
}

func (m *mock) ref() schema.BlobRef { return schema.RefOf(m.blob) }

// read is one Get without what the store does besides.
func (m *mock) read(ctx context.Context, s *Store) error {
	b, err := s.get(ctx, m.ref())
	if err != nil {
		return err
	}
	defer b.Release()
	return m.ref().Check(b.Bytes())
}

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		deed   deed
		params string
		says   string
	}{
		"overloaded":    {deed: deed{answer: &message.Overloaded{ErrorMessage: "busy"}}, says: "sheds load"},
		"unavailable":   {deed: deed{answer: &message.Unavailable{ErrorMessage: "down", Consistency: primitive.ConsistencyLevelLocalOne, Required: 1}}, says: "too few replicas"},
		"read timeout":  {deed: deed{answer: &message.ReadTimeout{ErrorMessage: "slow", Consistency: primitive.ConsistencyLevelLocalOne, BlockFor: 1}}, says: "too slow"},
		"server error":  {deed: deed{answer: &message.ServerError{ErrorMessage: "oops"}}, says: "its log"},
		"bootstrapping": {deed: deed{answer: &message.IsBootstrapping{ErrorMessage: "joining"}}, says: "joining"},
		"cut":           {deed: deed{cut: true}, says: "check"},
		"hang":          {deed: deed{hang: true}, params: "&timeout=200ms", says: "no answer within 200ms"},
	} {
		t.Run(name+" once", func(t *testing.T) {
			m, other, port := mockPair(t, func(n int) deed {
				if n == 1 {
					return c.deed
				}
				return deed{}
			}, func(int) deed { return deed{} })
			s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2/mock?conns=2%s", port, c.params))
			for range 4 { // hosts take turns
				if err := m.read(t.Context(), s); err != nil {
					t.Fatalf("a read that should have been tried again: %v", err)
				}
			}
			if got := len(m.reads()) + len(other.reads()); got != 5 || len(m.reads()) == 0 {
				t.Errorf("%d reads of the first server and %d of the second, want 5: one was to fail", len(m.reads()), len(other.reads()))
			}
		})
		t.Run(name+" always", func(t *testing.T) {
			port := freePort(t)
			m := startMock(t, "127.0.0.1", port, 0, 0, func(int) deed { return c.deed })
			s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=4%s", port, c.params))
			err := m.read(t.Context(), s)
			if !errors.Is(err, schema.ErrUnavailable) {
				t.Fatalf("%v, want one that can be tried again", err)
			}
			for _, word := range []string{"mock." + tableParts, "127.0.0.1:" + strconv.Itoa(port), c.says, m.ref().Key.String()} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error %q does not say %q", err, word)
				}
			}
			if len(m.reads()) == 0 {
				t.Error("the server was not asked")
			}
		})
	}
}

// TestRetryMoves: what one host refuses, the next is asked for.
func TestRetryMoves(t *testing.T) {
	busy, idle, port := mockPair(t,
		func(int) deed { return deed{answer: &message.Overloaded{ErrorMessage: "busy"}} },
		func(int) deed { return deed{} })
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2/mock?conns=1", port))
	const reads = 20
	for range reads {
		if err := idle.read(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if len(idle.reads()) != reads {
		t.Errorf("the idle host was asked %d times, want %d", len(idle.reads()), reads)
	}
	if n := len(busy.reads()); n == 0 || n > reads {
		t.Errorf("the busy host was asked %d times, want 1 to %d: no read asks it twice", n, reads)
	}
}

func TestCancelEndsReads(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the client has gone")
	port := freePort(t)
	m := startMock(t, "127.0.0.1", port, 0, 0, func(int) deed {
		return deed{hang: true, arrive: func() { cancel(cause) }}
	})
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?timeout=1h", port))
	if err := m.read(ctx, s); !errors.Is(err, cause) { // or the test hangs
		t.Errorf("got %v, want the cause of the cancellation", err)
	}
	if n := len(m.reads()); n != 1 {
		t.Errorf("the server was asked %d times", n)
	}
}

// TestMissingRow: a replica that has no row is not believed at once.
func TestMissingRow(t *testing.T) {
	empty := deed{answer: &message.RowsResult{Metadata: &message.RowsMetadata{
		ColumnCount: 1, Columns: []*message.ColumnMetadata{{Keyspace: "mock", Table: tableParts, Name: "data", Type: datatype.Blob}},
	}, Data: message.RowSet{}}}
	port := freePort(t)
	m := startMock(t, "127.0.0.1", port, 0, 0, func(n int) deed {
		if n <= 2 {
			return empty
		}
		return deed{}
	})
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock", port))
	if err := m.read(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	want := []primitive.ConsistencyLevel{primitive.ConsistencyLevelLocalOne, primitive.ConsistencyLevelLocalQuorum, primitive.ConsistencyLevelQuorum}
	if got := m.reads(); !slices.Equal(got, want) {
		t.Errorf("read at %v, want %v", got, want)
	}
	short := startMock(t, "127.0.0.2", port, 0, 0, func(int) deed { return deed{} })
	short.blob = short.blob[1:]
	s = mockStore(t, fmt.Sprintf("cql://127.0.0.2:%d/mock", port))
	if err := m.read(t.Context(), s); !errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("a cell of another size: %v", err)
	}
}

// TestShards: ScyllaDB's fork opens a connection to each shard.
func TestShards(t *testing.T) {
	const shards = 4
	port, aware := freePort(t), freePort(t)
	m := startMock(t, "127.0.0.1", port, shards, aware, func(int) deed { return deed{} })
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=4", port))
	for range 20 {
		if err := m.read(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(m.reads()); n != 20 {
		t.Errorf("%d reads arrived, want 20", n)
	}
	if _, fork := reflect.TypeFor[gocql.ClusterConfig]().FieldByName("DisableShardAwarePort"); !fork {
		return // gocql knows no shards; that it reads from such a server is all
	}
	// The driver fills its pool in the background.
	deadline := time.Now().Add(time.Minute)
	for {
		m.mu.Lock()
		n := len(m.shards)
		m.mu.Unlock()
		if n >= shards-1 { // one was connected by way of the other port
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("connections to %d of %d shards: %v", n, shards, m.shards)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
