//go:build cassandra

package cql

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/gocql/gocql"

	"bowstring/fetch/store"
	"bowstring/internal/cassandratest"
	"bowstring/schema"
)

// foreignRow is a row of another program's tables.
type foreignRow struct {
	id    gocql.UUID
	label any // int, or []byte
	data  []byte
	split string
	class string
}

// foreignRows are distinct in every column except the splits.
func foreignRows(n int, mask bool) []foreignRow {
	rows := make([]foreignRow, n)
	for i := range rows {
		r := &rows[i]
		binary.BigEndian.PutUint64(r.id[8:], uint64(i))
		r.id[0] = 7
		r.label = i
		if mask {
			r.label = fmt.Appendf(nil, "mask %d", i)
		}
		r.data = bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 10+i)
		r.split = []string{"train", "val"}[i%3/2]
		r.class = fmt.Sprintf("class %d", i)
	}
	return rows
}

// foreignTables creates tables as the examples of cassandra-dali-plugin do,
// and fills them. It returns the name of their keyspace.
func createForeign(t *testing.T, labelType string, rows []foreignRow) string {
	t.Helper()
	keyspace := newKeyspace(t)
	session := newSession(t, cassandratest.Shared(t).URI(keyspace, ""))
	defer session.Close()
	exec := func(stmt string, args ...any) {
		t.Helper()
		if err := session.Query(stmt, args...).Exec(); err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE KEYSPACE " + keyspace + " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
	exec("CREATE TABLE " + keyspace + ".data (id uuid, label " + labelType + ", data blob, PRIMARY KEY ((id))) WITH " +
		"compression = {'enabled': 'false'}")
	exec("CREATE TABLE " + keyspace + ".metadata (label int, or_label text, or_split text, id uuid, PRIMARY " +
		"KEY ((id)))")
	for i, r := range rows {
		exec("INSERT INTO "+keyspace+".data (id, label, data) VALUES (?, ?, ?)", r.id, r.label, r.data)
		exec("INSERT INTO "+keyspace+".metadata (id, label, or_label, or_split) VALUES (?, ?, ?, ?)", r.id, i, r.class,
			r.split)
	}
	return keyspace
}

// checkAttached reads the whole snapshot and compares it with the rows.
func checkAttached(t *testing.T, s store.Store, snap *schema.Snapshot, rows []foreignRow, mask bool) {
	t.Helper()
	chunks := make([]schema.Blob, len(snap.Chunks))
	for i, c := range snap.Chunks {
		var err error
		if chunks[i], err = s.Get(t.Context(), c.BlobRef); err != nil {
			t.Fatal(err)
		}
	}
	m, err := schema.OpenManifest(snap, chunks)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if m.Rows() != int64(len(rows)) {
		t.Fatalf("%d rows, want %d", m.Rows(), len(rows))
	}
	get := func(col int, pos int64) []byte {
		t.Helper()
		ref, ok := m.Blob(col, pos)
		if !ok {
			t.Fatalf("row %d, blob column %d is null", pos, col)
		}
		b, err := s.Get(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Release()
		if err := ref.Check(b.Bytes()); err != nil {
			t.Fatal(err)
		}
		return bytes.Clone(b.Bytes())
	}
	arrays, err := m.Column("or_label") // one a chunk
	if err != nil {
		t.Fatal(err)
	}
	var classes []string
	for _, a := range arrays {
		for i := range a.Len() {
			classes = append(classes, a.(*array.String).Value(i))
		}
	}
	for i, r := range rows {
		pos, ok := m.Lookup(schema.ID(r.id))
		if !ok {
			t.Fatalf("row %v is not in the snapshot", r.id)
		}
		if got := get(0, pos); !bytes.Equal(got, r.data) {
			t.Fatalf("row %d has %d bytes of data, want %d others", i, len(got), len(r.data))
		}
		if mask {
			if got := get(1, pos); !bytes.Equal(got, r.label.([]byte)) {
				t.Fatalf("row %d has the label %q, want %q", i, got, r.label)
			}
		}
		if got := classes[pos]; got != r.class {
			t.Fatalf("row %d is of class %q, want %q", i, got, r.class)
		}
		if got := m.SplitOf(pos); got != r.split {
			t.Fatalf("row %d is in split %q, want %q", i, got, r.split)
		}
	}
}

func TestAttach(t *testing.T) {
	rows := foreignRows(200, false)
	foreign := createForeign(t, "int", rows)
	keyspace := newKeyspace(t)
	s := openStore(t, keyspace)
	var last AttachReport
	opts := AttachOptions{
		Dataset: "imagenette", Data: foreign + ".data", Metadata: foreign + ".metadata", SplitColumn: "or_split",
		Media:    schema.MediaImage,
		ranges:   16,
		Progress: func(r AttachReport) { last = r },
	}
	snap, report, err := s.Attach(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if report.Rows != 200 || report.NoMetadata != 0 || report.NoSample != 0 || report != last || report.Done != 1 {
		t.Errorf("the report is %+v, the last one was %+v", report, last)
	}
	var names []string
	for _, f := range snap.Schema.Fields() {
		names = append(names, f.Name)
	}
	if want := []string{"id", "label", "or_label", "or_split", "data"}; !slices.Equal(names, want) {
		t.Errorf("columns %v, want %v", names, want)
	}
	if f, _ := snap.Schema.FieldsByName("label"); f[0].Type.ID() != arrow.INT32 {
		t.Errorf("label is a %v", f[0].Type)
	}
	checkAttached(t, s, snap, rows, false)
	if n := s.Stats().StoredBytes; n >= report.Bytes {
		t.Errorf("the store holds %d bytes: the %d of the table were copied", n, report.Bytes)
	}

	// Another process finds the table by itself, also one that was open before.
	other := openStore(t, keyspace)
	checkAttached(t, other, snap, rows, false)

	// The same scan makes the same manifest.
	opts.Replace = true
	again, _, err := s.Attach(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if again.Number != 2 || again.Chunks[0].Key != snap.Chunks[0].Key || again.Chunks[1].Key != snap.Chunks[1].Key {
		t.Errorf("a second scan gives chunks %v, the first gave %v", again.Chunks, snap.Chunks)
	}
	// A collection leaves it in peace.
	if _, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	checkAttached(t, s, again, rows, false)
	opts.Replace = false
	if _, _, err := s.Attach(t.Context(), opts); !errors.Is(err, schema.ErrExists) {
		t.Errorf("attaching over a dataset: %v", err)
	}
}

func TestAttachBlobLabels(t *testing.T) {
	rows := foreignRows(40, true)
	foreign := createForeign(t, "blob", rows)
	s := openStore(t, newKeyspace(t))
	// The split's column need not become one of the dataset.
	snap, _, err := s.Attach(t.Context(), AttachOptions{
		Dataset: "ade20k", Data: foreign + ".data", Metadata: foreign + ".metadata", SplitColumn: "or_split",
		Columns: []string{"data", "label", "or_label"}, ranges: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(schema.BlobFields(snap.Schema)); got != 2 {
		t.Fatalf("%d blob columns, want data and label: %v", got, snap.Schema)
	}
	if got := len(schema.MetaFields(snap.Schema)); got != 1 {
		t.Fatalf("%d metadata columns, want or_label alone: %v", got, snap.Schema)
	}
	checkAttached(t, s, snap, rows, true)
}

func TestAttachedTableChanges(t *testing.T) {
	rows := foreignRows(10, false)
	foreign := createForeign(t, "int", rows)
	session := newSession(t, cassandratest.Shared(t).URI(foreign, ""))
	defer session.Close()
	exec := func(stmt string, args ...any) {
		t.Helper()
		if err := session.Query(stmt, args...).Exec(); err != nil {
			t.Fatal(err)
		}
	}
	exec("DELETE FROM "+foreign+".metadata WHERE id = ?", rows[3].id)
	exec("DELETE data FROM "+foreign+".data WHERE id = ?", rows[4].id)
	exec("DELETE FROM "+foreign+".data WHERE id = ?", rows[5].id)
	s := openStore(t, newKeyspace(t))
	opts := AttachOptions{Dataset: "d", Data: foreign + ".data", Metadata: foreign + ".metadata", ranges: 8}
	snap, report, err := s.Attach(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if report.Rows != 9 || report.NoMetadata != 1 || report.NoSample != 1 {
		t.Errorf("the report is %+v", report)
	}
	chunk, err := s.Get(t.Context(), snap.Chunks[0].BlobRef)
	if err != nil {
		t.Fatal(err)
	}
	m, err := schema.OpenManifest(snap, []schema.Blob{chunk})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ref := func(i int) (schema.BlobRef, bool) {
		pos, ok := m.Lookup(schema.ID(rows[i].id))
		if !ok {
			t.Fatalf("no row %d", i)
		}
		return m.Blob(0, pos)
	}
	if _, ok := ref(4); ok {
		t.Error("a cell without a value is not null")
	}
	changed, _ := ref(6)
	exec("UPDATE "+foreign+".data SET data = ? WHERE id = ?", bytes.Repeat([]byte{1}, len(rows[6].data)), rows[6].id)
	b, err := s.Get(t.Context(), changed)
	if err != nil {
		t.Fatal(err)
	}
	if err := changed.Check(b.Bytes()); !errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("a cell that was changed: %v", err)
	}
	b.Release()
	gone, _ := ref(7)
	exec("DELETE FROM "+foreign+".data WHERE id = ?", rows[7].id)
	if _, err := s.Get(t.Context(), gone); !errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("a row that was deleted: %v", err)
	}
	for name, opts := range map[string]AttachOptions{
		"data":    {Dataset: "e", Data: "nothing"},
		"columns": {Dataset: "e", Data: foreign + ".data", Columns: []string{"data", "colour"}},
	} {
		var field *schema.FieldError
		if _, _, err := s.Attach(t.Context(), opts); !errors.As(err, &field) || field.Field != name {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	if _, _, err := s.Attach(t.Context(), AttachOptions{Dataset: "e", Data: foreign + ".nothing"}); !errors.Is(err,
		schema.ErrNotFound) {
		t.Errorf("an absent table: %v", err)
	}
}

// TestAttachPlain: a table of nothing but ids and blobs, which grows.
func TestAttachPlain(t *testing.T) {
	foreign := newKeyspace(t)
	session := newSession(t, cassandratest.Shared(t).URI(foreign, ""))
	defer session.Close()
	exec := func(stmt string, args ...any) {
		t.Helper()
		if err := session.Query(stmt, args...).Exec(); err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE KEYSPACE " + foreign + " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
	exec("CREATE TABLE " + foreign + ".plain (id uuid PRIMARY KEY, data blob)")
	insert := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			exec("INSERT INTO "+foreign+".plain (id, data) VALUES (?, ?)", gocql.UUID{8, 15: byte(i)},
				bytes.Repeat([]byte{byte(i)}, 100))
		}
	}
	insert(0, 30)
	s := openStore(t, newKeyspace(t))
	opts := AttachOptions{Dataset: "plain", Data: foreign + ".plain", ranges: 4}
	snap, report, err := s.Attach(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	splits := func(snap *schema.Snapshot) string { return fmt.Sprint(snap.Splits) }
	if snap.Rows() != 30 || report.Bytes != 3000 || splits(snap) != "[{train [{0 30}]}]" {
		t.Errorf("%d rows of %d bytes, splits %s, want 30 of 3000 in train", snap.Rows(), report.Bytes, splits(snap))
	}

	// Once more is an error that names some of them, and changes nothing.
	opts.Append = true
	_, _, err = s.Attach(t.Context(), opts)
	if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "30 of the ids are in plain@1") ||
		!strings.Contains(err.Error(), "08000000-") {
		t.Errorf("appending the same rows: %v", err)
	}
	opts.SkipExisting = true
	same, report, err := s.Attach(t.Context(), opts)
	if err != nil || same.Number != 1 || report.Rows != 0 || report.Skipped != 30 || report.Bytes != 0 {
		t.Errorf("appending the same rows, without those that exist: snapshot %v, %+v, %v", same, report, err)
	}
	insert(30, 37)
	grown, report, err := s.Attach(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if grown.Number != 2 || grown.Rows() != 37 || report.Rows != 7 || report.Skipped != 30 || report.Bytes != 700 ||
		splits(grown) != "[{train [{0 37}]}]" {
		t.Errorf("a table that has grown: snapshot %d of %d rows, %+v, splits %s", grown.Number, grown.Rows(), report,
			splits(grown))
	}
	opts.Append = false
	var field *schema.FieldError
	if _, _, err := s.Attach(t.Context(), opts); !errors.As(err, &field) {
		t.Errorf("skipping what exists without appending: %v", err)
	}
}
