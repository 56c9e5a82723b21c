package cql

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/datastax/go-cassandra-native-protocol/frame"
	"github.com/datastax/go-cassandra-native-protocol/message"
	"github.com/datastax/go-cassandra-native-protocol/primitive"

	"bowstring/internal/freeport"
	"bowstring/schema"
)

// mock is a server with faults that a real one cannot be made to have. It has one blob,
// whose parts are read by a prepared statement.
type mock struct {
	addr  string
	peers []string // the addresses of the other servers of the cluster
	blob  []byte
	// For a cluster that says how it is replicated: its tokens, and how many replicas
	// there are.
	tokens   func(member net.IP) []string
	replicas int

	mute   atomic.Pointer[chan struct{}] // nothing is answered while there is one, which gets one for each question whether it is there
	behind atomic.Int32                  // how many more times the others have another schema

	cells   func(key []byte, part int) []byte // in place of the blob; nil for no row
	latency atomic.Int64                      // of reads, which do not wait for one another; 0 for none

	shards    int // 0 for a server that is no Scylla
	awarePort int
	do        func(n int) deed         // what to do with the nth read, from 1
	gathered  func(keys [][]byte) deed // what to do with a gathered read; nil: what do says
	connected chan int                 // the shard of each connection to awarePort

	late  sync.WaitGroup
	ended chan struct{}

	mu     sync.Mutex
	conns  []net.Conn
	levels []primitive.ConsistencyLevel // of the reads so far
	places []int                        // the shards that the reads came to
	lists  [][][]byte                   // the keys of each read, one unless it is a gathered one

	prepared []string                           // the statements that were to be prepared so far
	prepare  func(query string) message.Message // what to answer in place of a prepared statement; nil for that
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

// freePort returns a port for mocks on several addresses of the loopback interface.
func freePort(t testing.TB) int {
	t.Helper()
	port, err := freeport.On("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return port
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
		if mute := m.mute.Load(); mute != nil {
			if r.Header.OpCode == primitive.OpCodeOptions {
				*mute <- struct{}{}
			}
			continue
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
		m.mu.Lock()
		m.prepared = append(m.prepared, msg.Query)
		m.mu.Unlock()
		if m.prepare != nil {
			if answer := m.prepare(msg.Query); answer != nil {
				return reply(answer)
			}
		}
		if strings.Contains(msg.Query, "system_schema.") && m.replicas > 0 || strings.HasPrefix(msg.Query, "CREATE ") ||
			strings.Contains(msg.Query, " "+tableCatalog+" ") {
			return reply(preparedSchema(msg.Query))
		}
		if msg.Query == selectGathered {
			return reply(preparedGathered)
		}
		return reply(prepared)
	case *message.Execute:
		if len(msg.QueryId) == 1 && msg.QueryId[0] != prepared.PreparedQueryId[0] && msg.QueryId[0] != gatheredID {
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

// execute answers a read.
func (m *mock) execute(r *frame.Frame, msg *message.Execute, c *mockConn) *frame.Frame {
	m.mu.Lock()
	m.levels = append(m.levels, msg.Options.Consistency)
	m.places = append(m.places, c.shard)
	n := len(m.levels)
	values := msg.Options.PositionalValues
	keys := [][]byte{values[0].Contents}
	gathered := msg.QueryId[0] == gatheredID
	if gathered {
		keys = keysIn(values[0].Contents)
	}
	m.lists = append(m.lists, keys)
	m.mu.Unlock()
	var d deed
	if gathered && m.gathered != nil {
		d = m.gathered(keys)
	} else {
		d = m.do(n)
	}
	if d.arrive != nil {
		d.arrive()
	}
	if d.answer == nil && gathered {
		d.answer = m.rows(keys)
	} else if d.answer == nil {
		cell := m.blob
		if m.cells != nil {
			cell = m.cells(values[0].Contents, int(binary.BigEndian.Uint32(values[1].Contents)))
		}
		rows := part(message.Row{cell})
		if m.cells != nil && cell == nil {
			rows = part()
		}
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

// prepares lists the statements about blobs and the catalog that were to be prepared so far.
func (m *mock) prepares() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.prepared), func(query string) bool {
		return !strings.Contains(query, tableParts) && !strings.Contains(query, " "+tableCatalog+" ")
	})
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
	s.dc, s.conns = "dc1", config.connsPerHost(1, time.Second)
	if s.db, s.steering, err = s.session(context.Background(), config.Keyspace, s.conns); err != nil {
		t.Fatal(err)
	}
	s.gathering = newGathering(s)
	t.Cleanup(func() {
		s.end()
		s.asking.Wait()
		s.gathering.running.Wait()
		s.db.Close()
		if err := s.buffers.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (m *mock) ref() schema.BlobRef { return schema.RefOf(m.blob) }

// read reads the blob as Get does, without Get's bookkeeping, and verifies it.
func (m *mock) read(ctx context.Context, s *Store) error {
	b, err := s.get(ctx, m.ref())
	if err != nil {
		return err
	}
	defer b.Release()
	return m.ref().Check(b.Bytes())
}
