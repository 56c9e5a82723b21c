//go:build cassandra

package cql

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

// TestSwap: what a swap does to a partition, and when it is refused.
func TestSwap(t *testing.T) {
	d := database{openStore(t, newKeyspace(t))}
	same := func(version int64, rows map[string]string) {
		t.Helper()
		for name, read := range map[string]func() (protocol.Partition, error){
			"Load": func() (protocol.Partition, error) { return d.Load(t.Context(), "p") },
			"Peek": func() (protocol.Partition, error) { return d.Peek(t.Context(), "p") },
			"Peek at rows": func() (protocol.Partition, error) {
				return d.Peek(t.Context(), "p", append(slices.Collect(maps.Keys(rows)), "absent")...)
			},
		} {
			p, err := read()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got := map[string]string{}
			for row, value := range p.Rows {
				got[row] = string(value)
			}
			if p.Version != version || !maps.Equal(got, rows) {
				t.Errorf("%s: version %d with %q, want %d with %q", name, p.Version, got, version, rows)
			}
		}
	}
	put := func(rows ...string) map[string][]byte {
		m := map[string][]byte{}
		for i := 0; i < len(rows); i += 2 {
			m[rows[i]] = []byte(rows[i+1])
		}
		return m
	}
	same(0, nil)
	for _, tt := range []struct {
		name    string
		version int64
		change  protocol.Change
		moved   bool
		want    map[string]string
		at      int64 // the version afterwards
	}{
		{"of a later version", 1, protocol.Change{Put: put("a", "0")}, true, nil, 0},
		{"the first", 0, protocol.Change{Put: put("a", "1", "b", "")}, false, map[string]string{"a": "1", "b": ""}, 1},
		{"the first again", 0, protocol.Change{Put: put("a", "2")}, true, map[string]string{"a": "1", "b": ""}, 1},
		{"put and delete", 1, protocol.Change{Put: put("c", "3"), Delete: []string{"a", "absent"}}, false,
			map[string]string{"b": "", "c": "3"}, 2},
		{"of an older version", 1, protocol.Change{Put: put("c", "4")}, true, map[string]string{"b": "", "c": "3"}, 2},
		{"put what is deleted", 2, protocol.Change{Put: put("b", "5"), Delete: []string{"b"}}, false,
			map[string]string{"b": "5", "c": "3"}, 3},
		{"nothing", 3, protocol.Change{}, false, map[string]string{"b": "5", "c": "3"}, 4},
		{"delete all", 4, protocol.Change{Delete: []string{"b", "c"}}, false, nil, 5},
		{"of a partition without rows, as if it were new", 0, protocol.Change{Put: put("a", "6")}, true, nil, 5},
		{"of a partition without rows", 5, protocol.Change{Put: put("a", "7")}, false, map[string]string{"a": "7"}, 6},
	} {
		err := d.Swap(t.Context(), "p", tt.version, tt.change)
		if errors.Is(err, protocol.ErrMoved) != tt.moved || err != nil && !tt.moved {
			t.Errorf("%s: %v", tt.name, err)
		}
		same(tt.at, tt.want)
	}
}

// TestLargeSwap: more than the servers take in other batches.
func TestLargeSwap(t *testing.T) {
	d := database{openStore(t, newKeyspace(t))}
	change := protocol.Change{Put: map[string][]byte{}}
	for i := range 3000 {
		change.Put[fmt.Sprintf("snapshot/%019d", i)] = bytes.Repeat([]byte{byte(i)}, 300)
	}
	if err := d.Swap(t.Context(), "p", 0, change); err != nil {
		t.Fatal(err)
	}
	p, err := d.Load(t.Context(), "p")
	if err != nil || len(p.Rows) != len(change.Put) {
		t.Fatalf("%d rows, want %d: %v", len(p.Rows), len(change.Put), err)
	}
	for row, value := range change.Put {
		if !bytes.Equal(p.Rows[row], value) {
			t.Fatalf("row %q is %d bytes %x", row, len(p.Rows[row]), p.Rows[row][:1])
		}
	}
}

// TestSwapsExclude has several change one partition at the same time.
func TestSwapsExclude(t *testing.T) {
	d := database{openStore(t, newKeyspace(t))}
	const writers, each = 4, 5
	var g errgroup.Group
	for w := range writers {
		g.Go(func() error {
			for n := 0; n < each; {
				p, err := d.Load(t.Context(), "p")
				if err != nil {
					return err
				}
				row := fmt.Sprintf("%d/%d", w, n)
				if _, done := p.Rows[row]; done { // its outcome was not known
					n++
					continue
				}
				// Each counts the rows that it has seen.
				err = d.Swap(t.Context(), "p", p.Version,
					protocol.Change{Put: map[string][]byte{row: fmt.Append(nil, len(p.Rows))}})
				switch {
				case err == nil:
					n++
				case !errors.Is(err, protocol.ErrMoved) && !errors.Is(err, protocol.ErrUncertain):
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	p, err := d.Load(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, value := range p.Rows {
		seen[string(value)] = true
	}
	if len(p.Rows) != writers*each || len(seen) != writers*each || p.Version != writers*each {
		t.Errorf("version %d with %d rows, which have seen %d states", p.Version, len(p.Rows), len(seen))
	}
}

// TestTornPages has a partition of several pages changed while it is read: two
// rows that are always changed together are never seen apart.
func TestTornPages(t *testing.T) {
	s := openStore(t, newKeyspace(t))
	s.pageRows = 2
	d := database{s}
	both := func(n int64) protocol.Change {
		value := fmt.Append(nil, n)
		c := protocol.Change{Put: map[string][]byte{"a": value, "z": value}}
		if n == 0 {
			for i := range 20 {
				c.Put[fmt.Sprintf("m%d", i)] = []byte("between")
			}
		}
		return c
	}
	if err := d.Swap(t.Context(), "p", 0, both(0)); err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	var done atomic.Bool
	g.Go(func() error {
		defer done.Store(true)
		for n := range int64(60) {
			if err := d.Swap(t.Context(), "p", n+1, both(n+1)); err != nil {
				return err
			}
		}
		return nil
	})
	torn := 0
	for !done.Load() {
		for size := range 2 { // as it is read, and in one attempt, which shows that it would be torn
			var p protocol.Partition
			var err error
			if size == 0 {
				p, err = d.Peek(t.Context(), "p")
			} else {
				var apart bool
				if p, apart, err = d.read(t.Context(), s.catalogLevel(), 2, selectPartition, "p"); apart {
					torn++
					continue
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Rows) != 22 || !bytes.Equal(p.Rows["a"], p.Rows["z"]) {
				t.Fatalf("version %d has %d rows, a is %s and z is %s", p.Version, len(p.Rows), p.Rows["a"],
					p.Rows["z"])
			}
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if torn == 0 {
		t.Error("no read was torn: the test tests nothing")
	}
}

// TestPartitions: they are listed while they have rows, and afterwards.
func TestPartitions(t *testing.T) {
	d := database{openStore(t, newKeyspace(t))}
	want := []string{protocol.Control} // the store was founded
	for i := range 50 {
		name := fmt.Sprintf("p%02d", i)
		if err := d.Swap(t.Context(), name, 0, protocol.Change{Put: map[string][]byte{"a": nil,
			"b": nil}}); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
	}
	if err := d.Swap(t.Context(), want[8], 1, protocol.Change{Delete: []string{"a", "b"}}); err != nil {
		t.Fatal(err)
	}
	got, err := d.Partitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// TestUncertainSwap: the server makes the swap, and the answer is lost.
func TestUncertainSwap(t *testing.T) {
	cut := &cutter{word: []byte("cut the connection")}
	s := openWith(t, newKeyspace(t), Options{Logger: quiet, Dialer: cut})
	d := database{s}
	cut.armed.Store(1)
	err := d.Swap(t.Context(), "p", 0, protocol.Change{Put: map[string][]byte{"a": cut.word}})
	if !errors.Is(err, protocol.ErrUncertain) || !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("a swap whose answer was lost: %v", err)
	}
	if cut.cuts.Load() == 0 {
		t.Error("no answer was lost: the test tests nothing")
	}
	p, err := d.Load(t.Context(), "p")
	if err != nil || p.Version != 1 || !bytes.Equal(p.Rows["a"], cut.word) {
		t.Errorf("afterwards there is %v: %v", p, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Swap(ctx, "p", 1, protocol.Change{}); !errors.Is(err, context.Canceled) ||
		errors.Is(err, protocol.ErrUncertain) {
		t.Errorf("a swap that was never begun: %v", err)
	}
}

// TestMembers: the greater beat stays, whichever comes first.
func TestMembers(t *testing.T) {
	d := database{openStore(t, newKeyspace(t))}
	member := func(id string, beat int64, holds ...string) protocol.Member {
		return protocol.Member{ID: id, Holder: "test", Acked: protocol.Epoch(beat * 10), Beat: beat, Holds: holds}
	}
	a := member("a", 3, "d@1", "d@2")
	for _, m := range []protocol.Member{member("a", 1), a, member("a", 2, "d@3"), member("b", 1), member("c", 9)} {
		if err := d.Announce(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Leave(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if err := d.Announce(t.Context(), member("d", 0)); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("beat 0: %v", err)
	}
	got, err := d.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(x, y protocol.Member) int { return bytes.Compare([]byte(x.ID), []byte(y.ID)) })
	if fmt.Sprint(got) != fmt.Sprint([]protocol.Member{a, member("b", 1)}) {
		t.Errorf("got %+v", got)
	}
}

// TestBlobEpochs: the latest of the writes and deletions in several epochs wins, in
// whatever order they arrive.
func TestBlobEpochs(t *testing.T) {
	d := database{openStore(t, newKeyspace(t))}
	const parts = 2*PartBytes + 17
	type op struct {
		do string
		at protocol.Epoch
	}
	for i, tt := range []struct {
		name            string
		ops             []op
		size            int64
		stored, touched protocol.Epoch
	}{
		{"nothing", nil, -1, 0, 0},
		{"touched", []op{{"touch", 5}}, -1, 0, 5},
		{"written", []op{{"touch", 5}, {"write", 5}}, parts, 5, 5},
		{"touched later", []op{{"touch", 5}, {"write", 5}, {"touch", 8}}, parts, 5, 8},
		{"touched earlier", []op{{"touch", 5}, {"write", 5}, {"touch", 3}}, parts, 5, 5},
		{"written twice", []op{{"touch", 7}, {"write", 7}, {"touch", 5}, {"write", 5}}, parts, 7, 7},
		{"deleted", []op{{"touch", 5}, {"write", 5}, {"delete", 6}}, -1, 0, 0},
		{"deleted before", []op{{"touch", 5}, {"write", 5}, {"delete", 5}}, parts, 5, 5},
		{"touched and deleted", []op{{"touch", 5}, {"write", 5}, {"touch", 6}, {"delete", 6}}, -1, 0, 6},
		{"written again and deleted", []op{{"touch", 5}, {"write", 5}, {"touch", 6}, {"write", 6}, {"delete", 6}},
			parts, 6, 6},
		{"deleted and written again", []op{{"touch", 5}, {"write", 5}, {"delete", 6}, {"touch", 6}, {"write", 6}},
			parts, 6, 6},
		{"written too late", []op{{"touch", 5}, {"write", 5}, {"delete", 6}, {"touch", 5}, {"write", 5}}, -1, 0, 0},
		{"unfinished and deleted", []op{{"touch", 5}, {"parts", 5}, {"delete", 6}}, -1, 0, 0},
		{"deleted in the first epoch", []op{{"touch", 1}, {"write", 1}, {"delete", 1}}, parts, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			data := bytes.Repeat([]byte{byte(i)}, parts)
			ref := schema.RefOf(data)
			for _, op := range tt.ops {
				var err error
				switch op.do {
				case "touch":
					err = d.Touch(t.Context(), ref, op.at)
				case "write":
					err = d.Write(t.Context(), ref, data, op.at)
				case "parts":
					err = d.s.putParts(t.Context(), ref, data, op.at)
				case "delete":
					var row protocol.BlobRow
					if row, err = d.Row(t.Context(), ref.Key); err == nil {
						err = d.Delete(t.Context(), row, op.at)
					}
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			want := protocol.BlobRow{Key: ref.Key, Size: tt.size, Stored: tt.stored, Touched: tt.touched}
			row, err := d.Row(t.Context(), ref.Key)
			if err != nil || row != want {
				t.Errorf("the row is %+v, want %+v: %v", row, want, err)
			}
			whole, err := d.Whole(t.Context(), ref)
			if err != nil || whole != (tt.size >= 0) {
				t.Errorf("whole is %v: %v", whole, err)
			}
			blob, err := d.Read(t.Context(), ref)
			if whole && err == nil {
				if !bytes.Equal(blob.Bytes(), data) {
					t.Error("other bytes than were written")
				}
				blob.Release()
			} else if whole || !errors.Is(err, schema.ErrNotFound) {
				t.Errorf("read: %v", err)
			}
			var scanned []protocol.BlobRow
			var mu errgroup.Group
			mu.SetLimit(1)
			err = d.Scan(t.Context(), func(_ context.Context, r protocol.BlobRow) error {
				if r.Key == ref.Key {
					mu.Go(func() error { scanned = append(scanned, r); return nil })
				}
				return nil
			})
			if err = errors.Join(err, mu.Wait()); err != nil {
				t.Fatal(err)
			}
			if tt.touched == 0 && len(scanned) != 0 || tt.touched != 0 &&
				!slices.Equal(scanned, []protocol.BlobRow{want}) {
				t.Errorf("a scan finds %+v, want %+v", scanned, want)
			}
		})
	}
}

// TestPartLost: a blob whose row is complete and that lacks a part is not whole.
func TestPartLost(t *testing.T) {
	d := database{openStore(t, newKeyspace(t))}
	data := bytes.Repeat([]byte("part"), PartBytes)
	ref := schema.RefOf(data)
	if err := errors.Join(d.Touch(t.Context(), ref, 1), d.Write(t.Context(), ref, data, 1)); err != nil {
		t.Fatal(err)
	}
	if err := d.s.write(t.Context(), 1, tableParts, deletePart, ref.Key[:], 2); err != nil {
		t.Fatal(err)
	}
	row, err := d.Row(t.Context(), ref.Key)
	if err != nil || row.Size != ref.Size {
		t.Fatalf("the row is %+v: %v", row, err)
	}
	if whole, err := d.Whole(t.Context(), ref); err != nil || whole {
		t.Errorf("whole is %v: %v", whole, err)
	}
}
