package cql

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/datastax/go-cassandra-native-protocol/datatype"
	"github.com/datastax/go-cassandra-native-protocol/message"
)

// topology answers the drivers' queries about the members of the cluster. The last byte of a member's address
// distinguishes it in all answers.
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
	names := []string{"peer", "broadcast_address", address, "native_port", "data_center", "rack", "host_id",
		"schema_version", "release_version", "partitioner", "tokens"}
	types := []datatype.DataType{
		datatype.Inet, datatype.Inet, datatype.Inet, datatype.Int, datatype.Varchar, datatype.Varchar, datatype.Uuid,
		datatype.Uuid,
		datatype.Varchar, datatype.Varchar, datatype.NewSet(datatype.Varchar),
	}
	answer := &message.RowsResult{Metadata: &message.RowsMetadata{ColumnCount: int32(len(names))}}
	for i := range names {
		answer.Metadata.Columns = append(answer.Metadata.Columns,
			&message.ColumnMetadata{Keyspace: "system", Table: "local", Name: names[i], Type: types[i]})
	}
	version := bytes.Repeat([]byte{2}, 16)
	if address == "native_address" && m.behind.Load() > 0 {
		m.behind.Add(-1)
		version[0]++
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
			ip, ip, ip, port, []byte("dc1"), []byte("rack1"), id, version,
			[]byte("3.11.2"), []byte("org.apache.cassandra.dht.Murmur3Partitioner"), tokens,
		})
	}
	return chosen(query, answer)
}

// chosen leaves the columns that a query names, or all. Any that the answer does not have is an address.
func chosen(query string, answer *message.RowsResult) *message.RowsResult {
	list, _, _ := strings.Cut(strings.TrimPrefix(query, "SELECT "), " FROM")
	if list == "*" {
		return answer
	}
	some := &message.RowsResult{Metadata: &message.RowsMetadata{}, Data: make(message.RowSet, len(answer.Data))}
	for name := range strings.SplitSeq(list, ", ") {
		at := max(0, slices.IndexFunc(answer.Metadata.Columns, func(c *message.ColumnMetadata) bool {
			return c.Name == name
		}))
		some.Metadata.Columns = append(some.Metadata.Columns, answer.Metadata.Columns[at])
		for i, row := range answer.Data {
			some.Data[i] = append(some.Data[i], row[at])
		}
	}
	some.Metadata.ColumnCount = int32(len(some.Metadata.Columns))
	return some
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

// Statements about the schema, of keyspaces, and of what else there is none of; and the one for several blobs.
const (
	keyspacesID = 2
	nothingID   = 3
	gatheredID  = 4
)

var (
	gatheredColumns = []*message.ColumnMetadata{
		{Keyspace: "mock", Table: tableParts, Name: "key", Type: datatype.Blob}, partColumns[0],
	}
	preparedGathered = &message.PreparedResult{
		PreparedQueryId: []byte{gatheredID},
		VariablesMetadata: &message.VariablesMetadata{Columns: []*message.ColumnMetadata{
			{Keyspace: "mock", Table: tableParts, Name: "in(key)", Type: datatype.NewList(datatype.Blob)},
		}},
		ResultMetadata: &message.RowsMetadata{ColumnCount: 2, Columns: gatheredColumns},
	}
)

// keysIn reads a bound list.
func keysIn(list []byte) (keys [][]byte) {
	n := binary.BigEndian.Uint32(list)
	list = list[4:]
	for range n {
		end := 4 + binary.BigEndian.Uint32(list)
		keys = append(keys, list[4:end])
		list = list[end:]
	}
	return keys
}

// rows is the answer to a gathered read: one for each different key that there is.
func (m *mock) rows(keys [][]byte) *message.RowsResult {
	rows := &message.RowsResult{Metadata: &message.RowsMetadata{ColumnCount: 2, Columns: gatheredColumns}}
	seen := map[string]bool{}
	for _, key := range keys {
		if cell := m.cells(key, 0); cell != nil && !seen[string(key)] {
			seen[string(key)] = true
			rows.Data = append(rows.Data, message.Row{key, cell})
		}
	}
	return rows
}

func preparedSchema(query string) *message.PreparedResult {
	p := &message.PreparedResult{
		PreparedQueryId: []byte{nothingID}, VariablesMetadata: &message.VariablesMetadata{},
		ResultMetadata: &message.RowsMetadata{},
	}
	if strings.Contains(query, "system_schema.keyspaces") {
		p.PreparedQueryId, p.ResultMetadata = []byte{keyspacesID}, keyspaceColumns
	}
	for range strings.Count(query, "?") {
		p.VariablesMetadata.Columns = append(p.VariablesMetadata.Columns,
			&message.ColumnMetadata{Keyspace: "system_schema", Table: "keyspaces", Name: "keyspace_name",
				Type: datatype.Varchar})
	}
	return p
}

var keyspaceColumns = &message.RowsMetadata{ColumnCount: 2, Columns: []*message.ColumnMetadata{
	{Keyspace: "system_schema", Table: "keyspaces", Name: "durable_writes", Type: datatype.Boolean},
	{Keyspace: "system_schema", Table: "keyspaces", Name: "replication",
		Type: datatype.NewMap(datatype.Varchar, datatype.Varchar)},
}}

func (m *mock) schema(id byte) message.Message {
	if id != keyspacesID {
		return &message.RowsResult{Metadata: &message.RowsMetadata{}, Data: message.RowSet{}}
	}
	options := binary.BigEndian.AppendUint32(nil, 2)
	for _, text := range []string{"class", "org.apache.cassandra.locator.NetworkTopologyStrategy", "dc1",
		strconv.Itoa(m.replicas)} {
		options = append(binary.BigEndian.AppendUint32(options, uint32(len(text))), text...)
	}
	return &message.RowsResult{Metadata: keyspaceColumns, Data: message.RowSet{{[]byte{1}, options}}}
}

// part is the answer to a read, of a row or of none.
func part(rows ...message.Row) *message.RowsResult {
	return &message.RowsResult{Metadata: &message.RowsMetadata{ColumnCount: 1, Columns: partColumns}, Data: rows}
}
