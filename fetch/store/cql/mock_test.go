package cql

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	addr  string
	peers []string // the addresses of the other servers of the cluster
	blob  []byte
	// Of a cluster that says how it is replicated: its tokens, and how many replicas there are.
	tokens   func(member net.IP) []string
	replicas int

	cells   func(key []byte, part int) []byte // in place of the blob
	latency atomic.Int64                      // of reads, which do not wait for one another; 0 for none

	shards    int // 0 for a server that is no Scylla
	awarePort int
	do        func(n int) deed // what to do with the nth read, from 1
	connected chan int         // the shard of each connection to awarePort

	late  sync.WaitGroup
	ended chan struct{}

	mu     sync.Mutex
	conns  []net.Conn
	levels []primitive.ConsistencyLevel // of the reads so far
	places []int                        // the shards that the reads came to
}

// mockConn is a connection to a mock.
type mockConn struct {
	net.Conn
	shard   int
	writing sync.Mutex
}

// deed is what a mock does with a read.
type deed struct {
	answer message.Message // in place of the blob
	hang   bool            // no answer
	cut    bool            // close the connection in the middle of the answer
	stream int16           // added to the number of the stream that is answered
	pages  bool            // say that there are more rows, and cut the connection when they are asked for
	arrive func()          // called first
}

// port that is free on several addresses of the loopback interface.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// startMock runs a server until the end of the test.
func startMock(t testing.TB, m *mock, ip string, port int) *mock {
	t.Helper()
	m.addr = net.JoinHostPort(ip, strconv.Itoa(port))
	m.blob = bytes.Repeat([]byte("bow"), 40_000)
	m.connected = make(chan int, 100)
	m.ended = make(chan struct{})
	ports := []int{port}
	if m.shards > 0 {
		ports = append(ports, m.awarePort)
	}
	var running sync.WaitGroup
	var listeners []net.Listener
	ended := false // guarded by m.mu
	for _, p := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(p)))
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		running.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				m.mu.Lock()
				m.conns = append(m.conns, c)
				if ended {
					c.Close()
				}
				m.mu.Unlock()
				running.Go(func() { m.serve(&mockConn{Conn: c}) })
			}
		})
	}
	t.Cleanup(func() {
		for _, l := range listeners {
			l.Close()
		}
		m.mu.Lock()
		ended = true
		for _, c := range m.conns {
			c.Close()
		}
		m.mu.Unlock()
		close(m.ended)
		running.Wait()
		m.late.Wait()
	})
	return m
}

// serve answers one request after the other, until the connection is closed.
func (m *mock) serve(c *mockConn) {
	defer c.Close()
	codec := frame.NewCodec()
	in := bufio.NewReader(c)
	for {
		r, err := codec.DecodeFrame(in)
		if err != nil {
			return
		}
		answer := m.answer(r, c)
		if answer == nil {
			continue
		}
		if late := time.Duration(m.latency.Load()); late > 0 && r.Header.OpCode == primitive.OpCodeExecute {
			m.late.Go(func() {
				select {
				case <-time.After(late):
					_ = c.write(codec, answer) // the driver may have gone
				case <-m.ended:
				}
			})
			continue
		}
		if err := c.write(codec, answer); err != nil {
			return
		}
	}
}

func (c *mockConn) write(codec frame.Codec, answer *frame.Frame) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return codec.EncodeFrame(answer, c)
}

// answer is nil if there is none.
func (m *mock) answer(r *frame.Frame, c *mockConn) *frame.Frame {
	reply := func(answer message.Message) *frame.Frame {
		return frame.NewFrame(r.Header.Version, r.Header.StreamId, answer)
	}
	switch msg := r.Body.Message.(type) {
	case *message.Options:
		if m.shards > 0 {
			return reply(m.supported(c))
		}
		return reply(&message.Supported{Options: map[string][]string{"CQL_VERSION": {"3.0.0"}, "COMPRESSION": {}}})
	case *message.Startup, *message.Register:
		return reply(&message.Ready{})
	case *message.Prepare:
		if strings.Contains(msg.Query, "system_schema.") && m.replicas > 0 {
			return reply(preparedSchema(msg.Query))
		}
		return reply(prepared)
	case *message.Execute:
		if len(msg.QueryId) == 1 && msg.QueryId[0] != prepared.PreparedQueryId[0] {
			return reply(m.schema(msg.QueryId[0]))
		}
		return m.execute(r, msg, c)
	case *message.Query:
		if ks, ok := strings.CutPrefix(msg.Query, "USE "); ok {
			return reply(&message.SetKeyspaceResult{Keyspace: strings.Trim(ks, `"`)})
		}
		if strings.Contains(msg.Query, "FROM system.") {
			return reply(m.topology(msg.Query, c))
		}
		// The driver's other questions, about keyspaces and tables, have no answer.
		return reply(&message.RowsResult{Metadata: &message.RowsMetadata{}, Data: message.RowSet{}})
	}
	return reply(&message.ProtocolError{ErrorMessage: fmt.Sprintf("the mock knows no %v", r.Header.OpCode)})
}

// topology answers what drivers ask about the members of the cluster. A
// member's last byte of the address is in all that tells it from the others.
func (m *mock) topology(query string, c net.Conn) message.Message {
	var members []string
	address := "rpc_address"
	switch {
	case strings.Contains(query, "system.local"):
		members = []string{c.LocalAddr().(*net.TCPAddr).IP.String()}
	case len(m.peers) > 0:
		members, address = m.peers, "native_address"
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
		list := []string{strconv.Itoa(int(ip[3]))}
		if m.tokens != nil {
			list = m.tokens(ip)
		}
		tokens := binary.BigEndian.AppendUint32(nil, uint32(len(list)))
		for _, token := range list {
			tokens = append(binary.BigEndian.AppendUint32(tokens, uint32(len(token))), token...)
		}
		answer.Data = append(answer.Data, message.Row{
			ip, ip, ip, port, []byte("dc1"), []byte("rack1"), id, bytes.Repeat([]byte{2}, 16),
			[]byte("3.11.2"), []byte("org.apache.cassandra.dht.Murmur3Partitioner"), tokens,
		})
	}
	return answer
}

var (
	partColumns = []*message.ColumnMetadata{{Keyspace: "mock", Table: tableParts, Name: "data", Type: datatype.Blob}}
	prepared    = &message.PreparedResult{
		PreparedQueryId: []byte{1},
		VariablesMetadata: &message.VariablesMetadata{PkIndices: []uint16{0, 1}, Columns: []*message.ColumnMetadata{
			{Keyspace: "mock", Table: tableParts, Name: "key", Type: datatype.Blob},
			{Keyspace: "mock", Table: tableParts, Name: "part", Type: datatype.Int},
		}},
		ResultMetadata: &message.RowsMetadata{ColumnCount: 1, Columns: partColumns},
	}
)

// Statements about the schema: of keyspaces, and of what else there is none of.
const (
	keyspacesID = 2
	nothingID   = 3
)

func preparedSchema(query string) *message.PreparedResult {
	p := &message.PreparedResult{
		PreparedQueryId: []byte{nothingID}, VariablesMetadata: &message.VariablesMetadata{}, ResultMetadata: &message.RowsMetadata{},
	}
	if strings.Contains(query, "system_schema.keyspaces") {
		p.PreparedQueryId, p.ResultMetadata = []byte{keyspacesID}, keyspaceColumns
	}
	for range strings.Count(query, "?") {
		p.VariablesMetadata.Columns = append(p.VariablesMetadata.Columns,
			&message.ColumnMetadata{Keyspace: "system_schema", Table: "keyspaces", Name: "keyspace_name", Type: datatype.Varchar})
	}
	return p
}

var keyspaceColumns = &message.RowsMetadata{ColumnCount: 2, Columns: []*message.ColumnMetadata{
	{Keyspace: "system_schema", Table: "keyspaces", Name: "durable_writes", Type: datatype.Boolean},
	{Keyspace: "system_schema", Table: "keyspaces", Name: "replication", Type: datatype.NewMap(datatype.Varchar, datatype.Varchar)},
}}

func (m *mock) schema(id byte) message.Message {
	if id != keyspacesID {
		return &message.RowsResult{Metadata: &message.RowsMetadata{}, Data: message.RowSet{}}
	}
	options := binary.BigEndian.AppendUint32(nil, 2)
	for _, text := range []string{"class", "org.apache.cassandra.locator.NetworkTopologyStrategy", "dc1", strconv.Itoa(m.replicas)} {
		options = append(binary.BigEndian.AppendUint32(options, uint32(len(text))), text...)
	}
	return &message.RowsResult{Metadata: keyspaceColumns, Data: message.RowSet{{[]byte{1}, options}}}
}

// part is the answer to a read, of a row or of none.
func part(rows ...message.Row) *message.RowsResult {
	return &message.RowsResult{Metadata: &message.RowsMetadata{ColumnCount: 1, Columns: partColumns}, Data: rows}
}

// execute answers a read.
func (m *mock) execute(r *frame.Frame, msg *message.Execute, c *mockConn) *frame.Frame {
	m.mu.Lock()
	m.levels = append(m.levels, msg.Options.Consistency)
	m.places = append(m.places, c.shard)
	n := len(m.levels)
	m.mu.Unlock()
	d := m.do(n)
	if d.arrive != nil {
		d.arrive()
	}
	if d.answer == nil {
		cell := m.blob
		if m.cells != nil {
			values := msg.Options.PositionalValues
			cell = m.cells(values[0].Contents, int(binary.BigEndian.Uint32(values[1].Contents)))
		}
		rows := part(message.Row{cell})
		if d.pages {
			rows = part()
			rows.Metadata.PagingState = []byte("more")
		}
		d.answer = rows
	}
	if d.pages && len(msg.Options.PagingState) > 0 {
		d.cut = true
	}
	answer := frame.NewFrame(r.Header.Version, r.Header.StreamId+d.stream, d.answer)
	switch {
	case d.hang:
		return nil
	case d.cut:
		var b bytes.Buffer
		if err := frame.NewCodec().EncodeFrame(answer, &b); err != nil {
			panic(err)
		}
		_, _ = io.CopyN(c, &b, int64(b.Len()/2)) // the driver may have gone
		_ = c.Close()
		return nil
	}
	return answer
}

// supported are the options of a Scylla node. A connection to the port that is
// aware of shards goes to the one that its own port says, the others to the first.
func (m *mock) supported(c *mockConn) *message.Supported {
	if c.LocalAddr().(*net.TCPAddr).Port == m.awarePort {
		c.shard = c.RemoteAddr().(*net.TCPAddr).Port % m.shards
		select {
		case m.connected <- c.shard:
		default: // it was seen often enough
		}
	}
	return &message.Supported{Options: map[string][]string{
		"CQL_VERSION": {"3.0.0"}, "COMPRESSION": {},
		"SCYLLA_SHARD": {strconv.Itoa(c.shard)}, "SCYLLA_NR_SHARDS": {strconv.Itoa(m.shards)},
		"SCYLLA_PARTITIONER":         {"org.apache.cassandra.dht.Murmur3Partitioner"},
		"SCYLLA_SHARDING_ALGORITHM":  {"biased-token-round-robin"},
		"SCYLLA_SHARDING_IGNORE_MSB": {"12"}, "SCYLLA_SHARD_AWARE_PORT": {strconv.Itoa(m.awarePort)},
	}}
}

func (m *mock) reads() []primitive.ConsistencyLevel {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.levels)
}

// mockPair starts servers that are one cluster.
func mockPair(t *testing.T, first, second func(n int) deed) (a, b *mock, port int) {
	t.Helper()
	port = freePort(t)
	a = startMock(t, &mock{do: first, peers: []string{"127.0.0.2"}}, "127.0.0.1", port)
	b = startMock(t, &mock{do: second, peers: []string{"127.0.0.1"}}, "127.0.0.2", port)
	return a, b, port
}

// mockAlone starts a server that is a cluster.
func mockAlone(t *testing.T, do func(n int) deed) (m *mock, port int) {
	t.Helper()
	port = freePort(t)
	return startMock(t, &mock{do: do}, "127.0.0.1", port), port
}

// well is how a server does that has no faults.
func well(int) deed { return deed{} }

// mockStore is a store on mocks, which is good for Get.
func mockStore(t testing.TB, uri string) *Store {
	return mockStoreOver(t, uri, nil)
}

// mockStoreOver has its connections made by a dialer.
func mockStoreOver(t testing.TB, uri string, dialer Dialer) *Store {
	t.Helper()
	config, err := ParseURI(uri)
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(config, Options{Logger: quiet, Dialer: dialer})
	s.dc = "dc1"
	if s.db, err = s.session(context.Background(), config.Keyspace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end()
		s.asking.Wait()
		s.db.Close()
		if err := s.buffers.close(); err != nil {
			t.Error(err)
		}
	})
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
		"read failure":  {deed: deed{answer: &message.ReadFailure{ErrorMessage: "bad disk", Consistency: primitive.ConsistencyLevelLocalOne, BlockFor: 1, NumFailures: 1}}, says: "its log"},
		"server error":  {deed: deed{answer: &message.ServerError{ErrorMessage: "oops"}}, says: "its log"},
		"bootstrapping": {deed: deed{answer: &message.IsBootstrapping{ErrorMessage: "joining"}}, says: "joining"},
		"cut":           {deed: deed{cut: true}, says: "check"},
		"hang":          {deed: deed{hang: true}, params: "&timeout=200ms", says: "no answer within 200ms"},
		"wrong stream":  {deed: deed{stream: 1000}, params: "&timeout=200ms", says: "no answer within 200ms"},
	} {
		t.Run(name+" once", func(t *testing.T) {
			var did atomic.Bool // one of the servers does it
			do := func(int) deed {
				if did.CompareAndSwap(false, true) {
					return c.deed
				}
				return deed{}
			}
			a, b, port := mockPair(t, do, do)
			s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2/mock?conns=2%s", port, c.params))
			if err := a.read(t.Context(), s); err != nil {
				t.Fatalf("a read that should have been tried again: %v", err)
			}
			if len(a.reads()) != 1 || len(b.reads()) != 1 {
				t.Errorf("%d and %d reads of the servers, want one of each: the other is asked", len(a.reads()), len(b.reads()))
			}
		})
		t.Run(name+" always", func(t *testing.T) {
			m, port := mockAlone(t, func(int) deed { return c.deed })
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
			if n := len(m.reads()); n != 1 {
				t.Errorf("the only server was asked %d times, want 1: whether to wait and ask again is the caller's business", n)
			}
		})
	}
}

// TestCutBetweenPages: a page without rows, and no other.
func TestCutBetweenPages(t *testing.T) {
	m, port := mockAlone(t, func(int) deed { return deed{pages: true} })
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=2", port))
	if err := m.read(t.Context(), s); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("%v, want one that can be tried again", err)
	}
}

// TestReadAfterCut: the connections that were lost are made again.
func TestReadAfterCut(t *testing.T) {
	m, port := mockAlone(t, func(n int) deed { return deed{cut: n%2 == 1} })
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=4", port))
	for n := 0; n < 6; {
		if err := m.read(t.Context(), s); err == nil {
			n++
		} else if !errors.Is(err, schema.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

// TestSameHostFirst: a blob is read from the same host all the time.
func TestSameHostFirst(t *testing.T) {
	a, b, port := mockPair(t, well, well)
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2/mock?conns=1", port))
	const reads = 10
	for range reads {
		if err := a.read(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if x, y := len(a.reads()), len(b.reads()); x+y != reads || x != 0 && y != 0 {
		t.Errorf("%d and %d reads of the servers, want %d of one of them", x, y, reads)
	}
}

func TestCancelEndsReads(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the client has gone")
	m, port := mockAlone(t, func(int) deed {
		return deed{hang: true, arrive: func() { cancel(cause) }}
	})
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?timeout=1h", port))
	if err := m.read(ctx, s); !errors.Is(err, cause) { // or the test hangs
		t.Errorf("got %v, want the cause of the cancellation", err)
	}
	if n := len(m.reads()); n != 1 {
		t.Errorf("the server was asked %d times", n)
	}
	if n := s.buffers.stats().buffers; n != 0 {
		t.Errorf("%d buffers are pinned, and nobody has them", n)
	}
}

// TestMissingRow: a replica that has no row is not believed at once.
func TestMissingRow(t *testing.T) {
	m, port := mockAlone(t, func(n int) deed {
		if n <= 2 {
			return deed{answer: part()}
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
}

// TestWrongSize: a cell of another size than the manifest says.
func TestWrongSize(t *testing.T) {
	for name, cell := range map[string][]byte{"short": []byte("bow"), "empty": {}, "long": make([]byte, 200_000)} {
		t.Run(name, func(t *testing.T) {
			m, port := mockAlone(t, func(int) deed { return deed{answer: part(message.Row{cell})} })
			s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock", port))
			err := m.read(t.Context(), s)
			if !errors.Is(err, schema.ErrDataLoss) {
				t.Fatalf("got %v", err)
			}
			for _, word := range []string{strconv.Itoa(len(cell)), strconv.Itoa(len(m.blob)), "127.0.0.1"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error %q does not say %s", err, word)
				}
			}
		})
	}
}

// TestSilentServer: one that hangs is left alone until it answers who asks it.
func TestSilentServer(t *testing.T) {
	var hung atomic.Bool
	asked := make(chan struct{}, 1000)
	first := func(int) deed {
		asked <- struct{}{}
		return deed{hang: hung.Load()}
	}
	a, b, port := mockPair(t, first, first)
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d,127.0.0.2/mock?conns=1&timeout=700ms", port))
	if err := a.read(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	<-asked
	st := s.steering
	hung.Store(true)
	// Both hang, so that each becomes silent.
	for st.silent.Load() == 0 {
		if err := a.read(t.Context(), s); !errors.Is(err, schema.ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
	}
	hung.Store(false)
	for st.silent.Load() > 0 {
		<-asked // or the test hangs
		if err := a.read(t.Context(), s); err != nil && !errors.Is(err, schema.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	if len(a.reads()) == 0 || len(b.reads()) == 0 {
		t.Errorf("%d and %d reads of the servers", len(a.reads()), len(b.reads()))
	}
}

// TestShards: ScyllaDB's fork opens a connection to each shard, and sends a read
// to the one of its key.
func TestShards(t *testing.T) {
	const shards = 4
	port, aware := freePort(t), freePort(t)
	m := startMock(t, &mock{shards: shards, awarePort: aware, do: well}, "127.0.0.1", port)
	s := mockStore(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=4", port))
	_, fork := reflect.TypeFor[gocql.ClusterConfig]().FieldByName("DisableShardAwarePort")
	if fork {
		// The driver fills its pool in the background. One was connected by way of
		// the other port.
		for seen := map[int]bool{0: true}; len(seen) < shards; {
			select {
			case shard := <-m.connected:
				seen[shard] = true
			case <-time.After(time.Minute):
				t.Fatalf("connections to the shards %v of %d only", seen, shards)
			}
		}
	}
	const reads = 20
	for range reads {
		if err := m.read(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.places) != reads {
		t.Errorf("%d reads arrived, want %d", len(m.places), reads)
	}
	// A connection may still have been on its way for the first ones.
	if last := m.places[reads/2:]; fork && slices.Min(last) != slices.Max(last) {
		t.Errorf("reads of one key came to the shards %v", last)
	}
}
