package cql

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/datastax/go-cassandra-native-protocol/frame"
	"github.com/datastax/go-cassandra-native-protocol/message"
	"github.com/datastax/go-cassandra-native-protocol/primitive"
	"github.com/gocql/gocql"

	"bowstring/schema"
)

// survey is what a process has to know of a cluster before it opens a session on the
// keyspace.
type survey struct {
	dc          string         // that requests prefer
	nodes       map[string]int // per datacenter
	exists      bool           // the keyspace exists
	replication Replication    // of the keyspace; set if it exists
	tables      map[string]string
	answered    time.Duration // upper bound of the node's answer time, some round trips
}

// inspect reads the state of the cluster from the first of the hosts that can be reached, over a bare connection. A
// session of the driver would do, but it costs nine round trips to open, and each of its statements two more. A bare
// connection takes one to connect, one to start, and one for all four statements together.
func (s *Store) inspect(ctx context.Context) (v *survey, err error) {
	for _, host := range s.config.Hosts {
		v, err = s.inspectAt(ctx, host)
		if err == nil || !errors.Is(err, schema.ErrUnavailable) || ctx.Err() != nil {
			break // other hosts would answer the same
		}
	}
	if err != nil {
		return nil, err
	}
	if s.config.DC != "" {
		v.dc = s.config.DC
	}
	if v.nodes[v.dc] == 0 {
		return nil, &schema.FieldError{Field: "dc", Got: quoted(v.dc),
			Want: "one of " + strings.Join(slices.Sorted(maps.Keys(v.nodes)), ", ")}
	}
	return v, nil
}

// inspectAt reads the state of the cluster from one host.
func (s *Store) inspectAt(ctx context.Context, host string) (*survey, error) {
	c, err := s.dialBare(ctx, host)
	if err != nil {
		return nil, s.connectFault(ctx, err)
	}
	defer func() { _ = c.Close() }() // nothing is in flight
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	v := &survey{nodes: map[string]int{}, tables: map[string]string{}}
	if v.answered, err = c.start(); err != nil {
		return nil, s.connectFault(ctx, err)
	}
	named := " WHERE keyspace_name = '" + strings.ReplaceAll(s.config.Keyspace, "'", "''") + "'"
	list := []struct {
		table, columns, doing, where string
		read                         func(row [][]byte) error
	}{
		// The node that is asked comes first, and system.peers lists the others.
		{"system.local", "data_center", "look at the cluster", "", v.addNode},
		{"system.peers", "data_center", "look at the cluster", "", v.addNode},
		{"system_schema.keyspaces", "replication", "look at the keyspace", named, func(row [][]byte) error {
			options, err := textMap(row[0])
			if err != nil {
				return err
			}
			return v.replicate(s.config.Keyspace, options)
		}},
		{"system_schema.tables", "table_name, comment", "look at the tables", named, func(row [][]byte) error {
			v.tables[string(row[0])] = string(row[1])
			return nil
		}},
	}
	statements := make([]string, len(list))
	for i, l := range list {
		statements[i] = "SELECT " + l.columns + " FROM " + l.table + l.where
	}
	asked := time.Now()
	answers, err := c.query(statements, max(s.config.Timeout, defineTimeout))
	v.answered = min(v.answered, time.Since(asked))
	if err != nil {
		return nil, s.fault(ctx, err, nil, "", "look at the cluster")
	}
	for i, l := range list {
		err := refusal(answers[i])
		rows, _ := answers[i].(*message.RowsResult)
		if err == nil && rows == nil {
			err = fmt.Errorf("an answer of the kind %v", answers[i].GetOpCode())
		}
		for at := 0; err == nil && at < len(rows.Data); at++ {
			err = l.read(rows.Data[at])
		}
		if err != nil {
			return nil, s.fault(ctx, err, nil, l.table, l.doing)
		}
	}
	if len(v.nodes) == 0 {
		return nil, fmt.Errorf("%w: %s says nothing of itself", schema.ErrUnavailable, s.where(nil, "system.local"))
	}
	return v, nil
}

// addNode counts a node of the cluster. The first one is the one that is asked.
func (v *survey) addNode(row [][]byte) error {
	dc := string(row[0])
	if len(v.nodes) == 0 {
		v.dc = dc
	}
	v.nodes[dc]++
	return nil
}

// replicate records the replication of the keyspace, which exists.
func (v *survey) replicate(keyspace string, options map[string]string) (err error) {
	v.exists, v.replication = true, Replication{}
	for key, value := range options {
		if key == "class" {
			continue
		}
		if key == "replication_factor" { // SimpleStrategy has no datacenters
			key = ""
		}
		count, _, _ := strings.Cut(value, "/") // some may be transient
		if v.replication[key], err = strconv.Atoi(count); err != nil {
			return fmt.Errorf("%w: keyspace %s has %q replicas in %s", schema.ErrInvalid, keyspace, value, key)
		}
	}
	return nil
}

// bare is a connection to a server without a session of the driver. One goroutine uses it.
type bare struct {
	net.Conn
	in      *bufio.Reader
	codec   frame.Codec
	version primitive.ProtocolVersion
	auth    gocql.Authenticator // nil without credentials
	within  time.Duration       // how long starting may take
}

// dialBare connects to a host, and makes spare connections to it. The caller closes the connection.
func (s *Store) dialBare(ctx context.Context, host string) (*bare, error) {
	cl, err := s.config.cluster(s.options)
	if err != nil {
		return nil, err
	}
	var dialer Dialer = &net.Dialer{KeepAlive: cl.SocketKeepalive}
	if cl.Dialer != nil {
		dialer = cl.Dialer
	}
	spare := ctx
	ctx, cancel := context.WithTimeout(ctx, cl.ConnectTimeout)
	defer cancel()
	address := net.JoinHostPort(host, strconv.Itoa(cl.Port))
	s.spares.dial(spare, dialer, address)
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if cl.SslOpts != nil {
		config := cl.SslOpts.Config
		if config.ServerName == "" {
			config.ServerName = host
		}
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close() // it is unused
			return nil, err
		}
		conn = secure
	}
	return &bare{
		Conn: conn, in: bufio.NewReader(conn), codec: frame.NewCodec(), version: primitive.ProtocolVersion(cl.ProtoVersion),
		auth: cl.Authenticator, within: cl.ConnectTimeout,
	}, nil
}

// start begins the protocol, and authenticates if the server requires it. It returns how long the server's first
// answer took.
func (c *bare) start() (answered time.Duration, err error) {
	if err := c.SetDeadline(time.Now().Add(c.within)); err != nil {
		return 0, err
	}
	asked := time.Now()
	answer, err := c.ask(message.NewStartup())
	answered = time.Since(asked)
	if wanted, ok := answer.(*message.Authenticate); ok {
		if c.auth == nil {
			return 0, fmt.Errorf("authentication required (using %q)", wanted.Authenticator)
		}
		response, _, refused := c.auth.Challenge([]byte(wanted.Authenticator))
		if refused != nil {
			return 0, refused
		}
		answer, err = c.ask(&message.AuthResponse{Token: response})
	}
	switch answer.(type) {
	case *message.Ready, *message.AuthSuccess:
		return answered, nil
	case nil:
		return 0, err
	}
	return 0, fmt.Errorf("unexpected response to connection startup: %v", answer.GetOpCode())
}

// ask sends a request and returns its answer. An error of the server is a refusedError.
func (c *bare) ask(request message.Message) (message.Message, error) {
	if err := c.codec.EncodeFrame(frame.NewFrame(c.version, 0, request), c); err != nil {
		return nil, err
	}
	answer, err := c.codec.DecodeFrame(c.in)
	if err != nil {
		return nil, fmt.Errorf("no response to connection startup: %w", err)
	}
	if err := refusal(answer.Body.Message); err != nil {
		return nil, err
	}
	return answer.Body.Message, nil
}

// query sends all statements at once, and returns their answers in the same order.
func (c *bare) query(statements []string, within time.Duration) ([]message.Message, error) {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return nil, err
	}
	for i, text := range statements {
		request := &message.Query{Query: text, Options: &message.QueryOptions{
			Consistency: primitive.ConsistencyLevelLocalOne,
		}}
		if err := c.codec.EncodeFrame(frame.NewFrame(c.version, int16(i), request), c); err != nil {
			return nil, err
		}
	}
	answers := make([]message.Message, len(statements))
	for range statements {
		answer, err := c.codec.DecodeFrame(c.in)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fmt.Errorf("%w: %w", gocql.ErrTimeoutNoResponse, err)
		case err != nil:
			return nil, err
		}
		i := int(answer.Header.StreamId)
		if i < 0 || i >= len(answers) || answers[i] != nil {
			return nil, fmt.Errorf("an answer to request %d, which was not made", i)
		}
		answers[i] = answer.Body.Message
	}
	return answers, nil
}

// refusedError is an error of a server that a bare connection got.
type refusedError struct {
	code int
	text string
}

// Error implements error.
func (e *refusedError) Error() string { return e.text }

// Code is the code of the native protocol.
func (e *refusedError) Code() int { return e.code }

// refusal returns the error that an answer is, or nil.
func refusal(answer message.Message) error {
	if refused, ok := answer.(message.Error); ok {
		return &refusedError{int(refused.GetErrorCode()), refused.GetErrorMessage()}
	}
	return nil
}

// spareConns is how many connections of a session the driver makes one after the other: that for control, and the
// first one for requests.
const spareConns = 2

// spares are connections for the session that is opened next, made at the same time as that by which the cluster is
// inspected. It is safe for concurrent use.
type spares struct {
	dialing sync.WaitGroup

	mu    sync.Mutex
	conns []spareConn
}

// spareConn is a connection that nothing was sent on.
type spareConn struct {
	net.Conn
	made time.Time
}

// spareFor is how long a spare connection is used. Cassandra closes one on which the client does not begin TLS within
// 10 s.
const spareFor = 8 * time.Second

// dial makes connections in the background, until ctx ends. One that cannot be made is left to the session.
func (p *spares) dial(ctx context.Context, dialer Dialer, address string) {
	for range spareConns {
		p.dialing.Go(func() {
			c, err := dialer.DialContext(ctx, "tcp", address)
			if err != nil {
				return
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.conns = append(p.conns, spareConn{c, time.Now()})
		})
	}
}

// take returns a connection to an address, which the caller closes; nil if there is none.
func (p *spares) take(address string) net.Conn {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.conns, func(c spareConn) bool {
		return c.RemoteAddr().String() == address && time.Since(c.made) < spareFor
	})
	if i < 0 {
		return nil
	}
	c := p.conns[i].Conn
	p.conns = slices.Delete(p.conns, i, i+1)
	return c
}

// close closes the connections that no session has taken. The context of dial has ended.
func (p *spares) close() {
	p.dialing.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close() // nothing was sent
	}
	p.conns = nil
}

// textMap decodes a map of texts of the native protocol: a count, and then each key and value after its length.
func textMap(b []byte) (map[string]string, error) {
	m := map[string]string{}
	short := fmt.Errorf("%w: a map of %d bytes is cut off", schema.ErrInvalid, len(b))
	number := func() (n int, ok bool) {
		if len(b) < 4 {
			return 0, false
		}
		n, b = int(int32(binary.BigEndian.Uint32(b))), b[4:]
		return n, n >= 0
	}
	text := func() (string, bool) {
		n, ok := number()
		if !ok || n > len(b) {
			return "", false
		}
		t := string(b[:n])
		b = b[n:]
		return t, true
	}
	pairs, ok := number()
	if !ok {
		return nil, short
	}
	for range pairs {
		key, found := text()
		value, ok := text()
		if !found || !ok {
			return nil, short
		}
		m[key] = value
	}
	return m, nil
}
