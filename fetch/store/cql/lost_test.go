package cql

import (
	"errors"
	"strings"
	"testing"

	"github.com/datastax/go-cassandra-native-protocol/message"

	"bowstring/schema"
)

// A table that is gone, or is another one, has lost the bytes that manifests name. One that the store's user may not
// read has not. Each error names the table, and says what would put it right.
func TestReadsOfTablesThatAreGone(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer message.Message
		is     error
		says   string
	}{
		{"dropped", &message.Invalid{ErrorMessage: "unconfigured table"}, schema.ErrDataLoss, "make the table again"},
		{"keyspace", &message.Invalid{ErrorMessage: "Keyspace 'k' does not exist"}, schema.ErrDataLoss, "make the table again"},
		{"column", &message.Invalid{ErrorMessage: "Undefined column name data in table"}, schema.ErrDataLoss, "another one"},
		{"revoked", &message.Unauthorized{ErrorMessage: "User u has no SELECT permission"}, schema.ErrUnavailable,
			"GRANT SELECT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := freePort(t)
			m := startMock(t, &mock{do: well, prepare: func(query string) message.Message {
				if strings.Contains(query, tableParts) || strings.Contains(query, `"k"."photos"`) {
					return c.answer
				}
				return nil
			}}, "127.0.0.1", port)
			s := mockStore(t, "cql://"+m.addr+"/k")
			table := newForeignTable("k", "photos", "id", "data")
			s.foreign.Store(&map[[prefixLen]byte]*foreignTable{table.prefix: table})
			attached := schema.BlobRef{Key: table.key(schema.ID{15: 7}, 1), Size: 10}
			for what, ref := range map[string]schema.BlobRef{"k." + tableParts: m.ref(), "k.photos": attached} {
				b, err := s.get(t.Context(), ref)
				if err == nil {
					b.Release()
				}
				if !errors.Is(err, c.is) {
					t.Errorf("%s: %v, want %v", what, err, c.is)
					continue
				}
				for _, part := range []string{what, m.addr, c.says} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%s: the error does not say %q: %v", what, part, err)
					}
				}
			}
		})
	}
}
