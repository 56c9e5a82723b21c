// The numbers are those of the driver of go.mod.

//go:build !gocql

package cql

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/datastax/go-cassandra-native-protocol/datatype"
	"github.com/datastax/go-cassandra-native-protocol/frame"
	"github.com/datastax/go-cassandra-native-protocol/message"

	"bowstring/internal/delay"
)

// piped is a Dialer to a server in this process that holds its answers back, to count rounds of them.
type piped struct {
	delay.Rounds
	serving sync.WaitGroup
	answer  func(request *frame.Frame, c *mockConn) message.Message
}

// pipeEnd is an end of a connection, with the addresses that ends of sockets have.
type pipeEnd struct {
	net.Conn
	local, remote *net.TCPAddr
}

func (e pipeEnd) LocalAddr() net.Addr  { return e.local }
func (e pipeEnd) RemoteAddr() net.Addr { return e.remote }

func (p *piped) DialContext(context.Context, string, string) (net.Conn, error) {
	<-p.Join()
	near, far := net.Pipe()
	client, server := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9), Port: 1}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9042}
	p.serving.Go(func() {
		c := &mockConn{Conn: pipeEnd{far, server, client}}
		defer c.Close()
		codec := frame.NewCodec()
		for {
			r, err := codec.DecodeFrame(c)
			if err != nil {
				return
			}
			over := p.Join()
			answer := frame.NewFrame(r.Header.Version, r.Header.StreamId, p.answer(r, c))
			p.serving.Go(func() {
				<-over
				_ = c.write(codec, answer) // the driver may have gone
			})
		}
	})
	return pipeEnd{near, client, server}, nil
}

// emptyStore answers as a server does that has a store without datasets. The id of a prepared statement is its text.
type emptyStore struct {
	mock
}

// columnsOf are the columns of the tables that a store reads at its beginning.
var columnsOf = map[string][]*message.ColumnMetadata{
	"system_schema.keyspaces": {{Name: "durable_writes", Type: datatype.Boolean},
		{Name: "replication", Type: datatype.NewMap(datatype.Varchar, datatype.Varchar)}},
	"system_schema.tables": {{Name: "table_name", Type: datatype.Varchar}, {Name: "comment", Type: datatype.Varchar}},
	tableCatalog: {{Name: "partition", Type: datatype.Varchar}, {Name: "row", Type: datatype.Varchar},
		{Name: "value", Type: datatype.Blob}, {Name: "version", Type: datatype.Bigint}},
	tableAttached: {{Name: "prefix", Type: datatype.Blob}, {Name: "keyspace_name", Type: datatype.Varchar},
		{Name: "table_name", Type: datatype.Varchar}, {Name: "id_column", Type: datatype.Varchar},
		{Name: "data_column", Type: datatype.Varchar}},
	tableParts: {{Name: "key", Type: datatype.Blob}, {Name: "part", Type: datatype.Int}, {Name: "data", Type: datatype.Blob}},
	tableMembers: {{Name: "id", Type: datatype.Varchar}, {Name: "holder", Type: datatype.Varchar},
		{Name: "acked", Type: datatype.Bigint}, {Name: "beat", Type: datatype.Bigint},
		{Name: "holds", Type: datatype.NewSet(datatype.Varchar)}, {Name: "[ttl]", Type: datatype.Int}},
}

// tableIn is the table of columnsOf that a statement is about.
func tableIn(query string) string {
	for table := range columnsOf {
		if strings.Contains(query, " "+table+" ") || strings.HasSuffix(query, " "+table) {
			return table
		}
	}
	return ""
}

// bound are the columns of the values of a statement.
func bound(query string) *message.VariablesMetadata {
	v := &message.VariablesMetadata{}
	columns := columnsOf[tableIn(query)]
	if strings.HasPrefix(query, "INSERT ") {
		v.Columns = columns
	} else {
		_, where, _ := strings.Cut(query, " WHERE ")
		for condition := range strings.SplitSeq(where, " AND ") {
			name, _, _ := strings.Cut(condition, " ")
			if !strings.Contains(condition, "?") {
				continue
			}
			c := message.ColumnMetadata{Name: name, Type: datatype.Varchar}
			for _, known := range columns {
				if known.Name == name {
					c = *known
				}
			}
			if strings.Contains(condition, " IN ") {
				c.Type = datatype.NewList(c.Type)
			}
			v.Columns = append(v.Columns, &c)
		}
	}
	for _, c := range v.Columns {
		c.Keyspace, c.Table = "mock", "t"
	}
	return v
}

// rows are those of a statement.
func (e *emptyStore) rows(query string) message.Message {
	rows := &message.RowsResult{Metadata: &message.RowsMetadata{}}
	if strings.HasPrefix(query, "INSERT ") {
		return &message.VoidResult{}
	}
	list, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(query, "SELECT "), "DISTINCT "), " FROM")
	for name := range strings.SplitSeq(list, ", ") {
		for _, c := range columnsOf[tableIn(query)] {
			if c.Name == name {
				rows.Metadata.Columns = append(rows.Metadata.Columns,
					&message.ColumnMetadata{Keyspace: "mock", Table: "t", Name: c.Name, Type: c.Type})
			}
		}
	}
	rows.Metadata.ColumnCount = int32(len(rows.Metadata.Columns))
	switch tableIn(query) {
	case "system_schema.keyspaces":
		options := binary.BigEndian.AppendUint32(nil, 2)
		for _, text := range []string{"class", "NetworkTopologyStrategy", "dc1", "1"} {
			options = append(binary.BigEndian.AppendUint32(options, uint32(len(text))), text...)
		}
		switch len(rows.Metadata.Columns) {
		case 1:
			rows.Data = message.RowSet{{options}}
		case 2: // for the driver
			rows.Data = message.RowSet{{{1}, options}}
		}
	case "system_schema.tables":
		for name, table := range tables {
			if len(rows.Metadata.Columns) == 2 {
				rows.Data = append(rows.Data, message.Row{[]byte(name), []byte(formatMark + table.comment)})
			}
		}
	}
	return rows
}

func (e *emptyStore) answer(r *frame.Frame, c *mockConn) message.Message {
	switch msg := r.Body.Message.(type) {
	case *message.Prepare:
		p := &message.PreparedResult{PreparedQueryId: []byte(msg.Query), VariablesMetadata: bound(msg.Query)}
		if rows, ok := e.rows(msg.Query).(*message.RowsResult); ok {
			p.ResultMetadata = rows.Metadata
		} else {
			p.ResultMetadata = &message.RowsMetadata{}
		}
		return p
	case *message.Execute:
		return e.rows(string(msg.QueryId))
	case *message.Query:
		if tableIn(msg.Query) != "" {
			return e.rows(msg.Query)
		}
	}
	return e.mock.answer(r, c).Body.Message
}

// TestOpenRounds: the round trips in sequence until a store is open and prepared. A round that the machine stretches
// counts as two, so the test tries again with longer rounds.
func TestOpenRounds(t *testing.T) {
	var open, ready int
	for silence := 50 * time.Millisecond; silence < 2*time.Second; silence *= 2 {
		open, ready = countRounds(t, silence)
		t.Logf("%d round trips until the store is open, %d until it is prepared", open, ready)
		if open <= openRounds && ready <= readyRounds || t.Failed() {
			return
		}
	}
	t.Errorf("want at most %d and %d round trips", openRounds, readyRounds)
}

// countRounds opens and prepares a store, and returns after how many round trips each had ended.
func countRounds(t *testing.T, silence time.Duration) (open, ready int) {
	t.Helper()
	e := &emptyStore{}
	server := &piped{Rounds: delay.Rounds{Silence: silence}, answer: e.answer}
	s, err := Open(t.Context(), "cql://127.0.0.1/mock?connect=1m&timeout=1m", Options{Logger: quiet, Dialer: server})
	if err != nil {
		t.Fatal(err)
	}
	open = server.Count()
	if err := s.Prepare(t.Context(), 0); err != nil {
		t.Error(err)
	}
	ready = server.Count()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	server.serving.Wait()
	return open, ready
}

// What TestOpenRounds wants: three round trips for what decides the number of connections, eight for the driver's
// control connection and three for one that has the keyspace, which are both made by then; two for the lists of the
// store; and then three.
const (
	openRounds  = 16
	readyRounds = 19
)
