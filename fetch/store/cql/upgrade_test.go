//go:build cassandra

package cql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/klauspost/compress/zstd"

	"bowstring/fetch/store"
	"bowstring/internal/cassandratest"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// format1 writes a keyspace as the program before did.
type format1 struct {
	t        *testing.T
	session  *gocql.Session
	keyspace string
}

func newFormat1(t *testing.T, uri, keyspace string) *format1 {
	t.Helper()
	o := &format1{t, newSession(t, uri), keyspace}
	t.Cleanup(o.session.Close)
	o.run("CREATE KEYSPACE " + keyspace + " WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 1}")
	for name, columns := range map[string]string{
		"blobs":      "key blob PRIMARY KEY, size bigint, parts int",
		"blob_parts": "key blob, part int, data blob, PRIMARY KEY ((key, part))",
		"snapshots": "dataset text, number bigint, version bigint static, last bigint static, dropped_to " +
			"bigint static, " +
			"record blob, created timestamp, commit_id uuid, dropped timestamp, PRIMARY KEY (dataset, number)",
		"selections": "dataset text, key blob, record text, PRIMARY KEY (dataset, key)",
		"leases":     "id text PRIMARY KEY, holder text, collection uuid, ingest bigint, snapshots frozen<set<text>>",
		"attached":   "prefix blob PRIMARY KEY, keyspace_name text, table_name text, id_column text, data_column text",
	} {
		o.run(fmt.Sprintf("CREATE TABLE %s.%s (%s) WITH comment = 'bowstring format 1: of a test'", keyspace, name,
			columns))
	}
	return o
}

func (o *format1) run(stmt string, args ...any) {
	o.t.Helper()
	if err := o.session.Query(strings.ReplaceAll(stmt, "KS.", o.keyspace+"."), args...).Exec(); err != nil {
		o.t.Fatal(err)
	}
}

// put stores a blob as it was at a moment, in microseconds.
func (o *format1) put(data []byte, at int64) schema.BlobRef {
	o.t.Helper()
	ref := schema.RefOf(data)
	n := partsOf(ref.Size)
	o.run("UPDATE KS.blobs USING TIMESTAMP ? SET parts = ? WHERE key = ?", at, n, ref.Key[:])
	for part := range n {
		o.run("INSERT INTO KS.blob_parts (key, part, data) VALUES (?, ?, ?) USING TIMESTAMP ?",
			ref.Key[:], part, data[part*PartBytes:min((part+1)*PartBytes, len(data))], at)
	}
	o.run("UPDATE KS.blobs USING TIMESTAMP ? SET size = ?, parts = ? WHERE key = ?", at, ref.Size, n, ref.Key[:])
	return ref
}

// oldIngest has the blobs and chunks of a snapshot put by the old program.
type oldIngest struct {
	store.Ingest

	o  *format1
	at int64
}

func (in oldIngest) Put(_ context.Context, data []byte) (schema.BlobRef, error) {
	return in.o.put(data, in.at), nil
}

// commit writes a snapshot, by a transaction.
func (o *format1) commit(dataset string, version, number int64, data [][]byte, at int64) *schema.Snapshot {
	o.t.Helper()
	snap, err := storetest.Put(o.t.Context(), oldIngest{o: o, at: at}, data, 3)
	if err != nil {
		o.t.Fatal(err)
	}
	snap.Dataset, snap.Number, snap.Parent = dataset, number, number-1
	snap.Created = time.Now().UTC().Truncate(time.Microsecond)
	text, err := json.Marshal(&snap)
	if err != nil {
		o.t.Fatal(err)
	}
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		o.t.Fatal(err)
	}
	defer encoder.Close()
	stmt := "UPDATE KS.snapshots SET version = ?, last = ?, record = ?, created = ?, commit_id = ? WHERE dataset = ? " +
		"AND number = ? IF version = "
	args := []any{version + 1, number, encoder.EncodeAll(text, nil), snap.Created, gocql.MustRandomUUID(), dataset,
		number}
	if version == 0 {
		stmt += "null"
	} else {
		stmt += "?"
		args = append(args, version)
	}
	o.run(stmt, args...)
	return &snap
}

func (o *format1) selection(snap *schema.Snapshot, bitmap []byte, at int64) schema.Selection {
	o.t.Helper()
	sel := schema.Selection{
		Dataset: snap.Dataset, Snapshot: snap.Number, Rows: 2, Bitmap: o.put(bitmap, at), Owner: "ann",
		Created: time.Now().UTC().Truncate(time.Microsecond),
		Expires: time.Now().UTC().Add(time.Hour).Truncate(time.Second),
	}
	text, err := json.Marshal(&sel)
	if err != nil {
		o.t.Fatal(err)
	}
	o.run("INSERT INTO KS.selections (dataset, key, record) VALUES (?, ?, ?)", sel.Dataset, sel.Bitmap.Key[:],
		string(text))
	return sel
}

// interrupter cancels when the n-th message is logged.
type interrupter struct {
	slog.Handler

	left   *int
	cancel context.CancelFunc
}

func (h interrupter) Handle(context.Context, slog.Record) error {
	if *h.left--; *h.left == 0 {
		h.cancel()
	}
	return nil
}

func (interrupter) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

// TestUpgrade has a store of format 1 upgraded, with an interruption at each
// step. Nothing is lost, numbers are not used again, and what is written
// afterwards is younger than what was written before by a clock that was ahead.
func TestUpgrade(t *testing.T) {
	keyspace := newKeyspace(t)
	uri := cassandratest.Shared(t).URI(keyspace, "conns=2")
	o := newFormat1(t, uri, keyspace)
	ahead := time.Now().Add(30 * time.Minute).UnixMicro()
	past := time.Now().Add(-time.Hour).UnixMicro()
	kept, newer, gone := blobs("kept", 5, 300), blobs("newer", 40, 200), blobs("gone", 3, 3*PartBytes/2)
	var want []*schema.Snapshot
	want = append(want, o.commit("a", 0, 1, kept, past), o.commit("a", 1, 2, append(slices.Clone(kept), newer...),
		ahead))
	o.commit("a", 2, 3, gone, ahead)
	o.run("UPDATE KS.snapshots SET version = ?, dropped = ? WHERE dataset = ? AND number = ? IF version = ?", 4,
		time.Now(), "a", 3, 3)
	o.commit("dropped", 0, 1, gone, past)
	o.commit("dropped", 1, 2, gone, past)
	o.run("UPDATE KS.snapshots SET version = ?, dropped_to = ? WHERE dataset = ? IF version = ?", 3, 2, "dropped", 2)
	want = append(want, o.commit("z", 0, 1, kept[:1], past))
	sel := o.selection(want[1], []byte("bitmap"), past)
	o.run("INSERT INTO KS.leases (id, holder) VALUES ('x', 'the trainer') USING TTL 600")

	refused := func() {
		t.Helper()
		s, err := Open(t.Context(), uri, Options{Logger: quiet})
		if err == nil {
			t.Fatal(errors.Join(errors.New("a store of format 1 was opened"), s.Close()))
		}
		if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "bowstring store init") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("the refusal is %q", err)
		}
	}
	refused()
	err := Init(t.Context(), uri, InitOptions{Logger: quiet})
	if !errors.Is(err, schema.ErrUnavailable) || !strings.Contains(err.Error(), "the trainer") {
		t.Errorf("an upgrade while the older program runs: %v", err)
	}
	o.run("DELETE FROM KS.leases WHERE id = 'x'")
	interruptions := 0
	for n := 1; ; n++ {
		ctx, cancel := context.WithCancel(t.Context())
		left := n
		err := Init(ctx, uri, InitOptions{Logger: slog.New(interrupter{quiet.Handler(), &left, cancel})})
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		interruptions++
		refused()
	}
	if interruptions < 4 {
		t.Errorf("%d interruptions: the test tests nothing", interruptions)
	}

	s := openWith(t, keyspace, Options{Logger: quiet})
	list, err := s.Datasets(t.Context())
	if err != nil || !reflect.DeepEqual(list, []store.Dataset{{Name: "a", Snapshots: []int64{1, 2}},
		{Name: "z", Snapshots: []int64{1}}}) {
		t.Fatalf("the catalog is %+v: %v", list, err)
	}
	for _, snap := range want {
		got, err := s.Snapshot(t.Context(), snap.Dataset, snap.Number)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Created.Equal(snap.Created) || got.Parent != snap.Parent ||
			!reflect.DeepEqual(got.Chunks, snap.Chunks) || !got.Schema.Equal(snap.Schema) {
			t.Errorf("%s@%d is %+v, was %+v", snap.Dataset, snap.Number, got, snap)
		}
	}
	got, err := s.Selection(t.Context(), "a", sel.Name())
	if err != nil || !reflect.DeepEqual(*got, sel) {
		t.Errorf("the selection is %+v, was %+v: %v", got, sel, err)
	}
	all := s.Stats()
	if all.Blobs == 0 || all.CountedAt.IsZero() {
		t.Errorf("the blobs were not counted: %+v", all)
	}
	// What is stored is found so, and numbers go on.
	snap, err := importInto(t.Context(), s, "dropped", 0, kept)
	if err != nil || snap.Number != 3 {
		t.Errorf("an import into a dataset whose snapshots 1 and 2 were dropped: %+v, %v", snap, err)
	}
	if now := s.Stats(); now.BlobDedups < int64(len(kept)) {
		t.Errorf("%d of %d blobs were found", now.BlobDedups, len(kept))
	}
	r, err := s.GC(t.Context(), store.GCOptions{}, nil)
	if err != nil || r.DeadBlobs < int64(len(gone)) {
		t.Fatalf("a collection found %+v: %v", r, err)
	}
	for _, data := range slices.Concat(kept, newer, [][]byte{[]byte("bitmap")}) {
		if err := has(t, s, data); err != nil {
			t.Errorf("what is in use was freed: %v", err)
		}
	}
	for _, data := range gone {
		if err := has(t, s, data); !errors.Is(err, schema.ErrNotFound) {
			t.Errorf("what was dropped is there: %v", err)
		}
	}
	// Its deletion is not younger than what comes after.
	if snap, err = importInto(t.Context(), s, "a", 2, gone); err != nil || snap.Number != 4 {
		t.Fatalf("an import of what was freed: %+v, %v", snap, err)
	}
	for _, data := range gone {
		if err := has(t, s, data); err != nil {
			t.Errorf("what was put again is lost: %v", err)
		}
	}
	if err := Init(t.Context(), uri, InitOptions{Logger: quiet}); err != nil {
		t.Errorf("of a store that is whole: %v", err)
	}
}

// TestInit: what makes a store, and what does not.
func TestInit(t *testing.T) {
	keyspace := newKeyspace(t)
	node := cassandratest.Shared(t)
	uri := node.URI(keyspace, "")
	if _, err := Open(t.Context(), uri, Options{Logger: quiet}); !errors.Is(err, schema.ErrNotFound) ||
		!strings.Contains(err.Error(), "bowstring store init") {
		t.Errorf("a keyspace that is missing is opened: %v", err)
	}
	var missing *NoReplicationError
	if err := Init(t.Context(), uri, InitOptions{Logger: quiet}); !errors.As(err, &missing) ||
		missing.Nodes["datacenter1"] != 1 {
		t.Errorf("without a replication: %v", err)
	}
	if err := Init(t.Context(), uri, InitOptions{Logger: quiet, Replication: Replication{"mars": 1}}); !errors.Is(err,
		schema.ErrInvalid) {
		t.Errorf("with a datacenter that is not there: %v", err)
	}
	session := newSession(t, uri)
	defer session.Close()
	v := &survey{}
	s := newStore(&Config{Keyspace: keyspace}, Options{Logger: quiet})
	defer s.end()
	look := func() *survey {
		t.Helper()
		if err := s.lookAtKeyspace(t.Context(), session, v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	if look().exists {
		t.Fatal("the keyspace was made")
	}
	for _, replication := range []Replication{{"datacenter1": 2}, nil, {"": 2}} {
		if err := Init(t.Context(), uri, InitOptions{Logger: quiet, Replication: replication}); err != nil {
			// One node cannot agree with another on the first row of the catalog.
			if !errors.Is(err, schema.ErrUnavailable) {
				t.Fatal(err)
			}
		}
	}
	if got := look().replication; !reflect.DeepEqual(got, Replication{"datacenter1": 2}) {
		t.Errorf("the keyspace has the replication %v", got)
	}
	if err := Init(t.Context(), uri, InitOptions{Logger: quiet, Replication: one}); !errors.Is(err, schema.ErrExists) {
		t.Errorf("another replication: %v", err)
	}
}
